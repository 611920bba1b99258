#include "train/model_card.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "formats/json.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Curve {
  std::optional<json> last_step, first_evaluation, last_evaluation;
};

Curve read_curve(const fs::path& metrics) {
  Curve curve;
  if (!fs::exists(metrics)) return curve;
  std::istringstream lines(read_text_file(metrics));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    json row = parse_json(line, fmt::format("{}:{}", metrics.string(), ++number));
    if (!row.is_object()) continue;
    if (row.contains("eval_loss")) {
      if (!curve.first_evaluation) curve.first_evaluation = row;
      curve.last_evaluation = std::move(row);
    } else {
      curve.last_step = std::move(row);
    }
  }
  return curve;
}

// A row of a table, where the value is there and a number.
void add_number(std::string& text, const std::string& what, const std::optional<json>& row,
                const char* key, const char* format) {
  if (!row || !row->contains(key) || !(*row)[key].is_number()) return;
  const json& value = (*row)[key];
  const std::string shown = value.is_number_integer()
                                ? fmt::format("{}", value.get<int64_t>())
                                : fmt::format(fmt::runtime(format), value.get<double>());
  text += fmt::format("| {} | {} |\n", what, shown);
}

std::string metrics_section(const fs::path& run) {
  const Curve curve = read_curve(run / "metrics.jsonl");
  std::string rows;
  add_number(rows, "steps", curve.last_step, "step", "{}");
  add_number(rows, "trained tokens", curve.last_step, "trained_tokens", "{}");
  add_number(rows, "training loss, last", curve.last_step, "loss", "{:.4f}");
  add_number(rows, "evaluation loss before training", curve.first_evaluation, "eval_loss",
             "{:.4f}");
  add_number(rows, "evaluation loss after training", curve.last_evaluation, "eval_loss", "{:.4f}");
  if (rows.empty()) return "No metrics were recorded.\n";
  return "| | |\n| --- | --- |\n" + rows + "\nLosses are nats per trained token.\n";
}

std::string quoted(const std::string& text) { return json(text).dump(); }

std::string usage(const Recipe& recipe, std::string_view format) {
  if (format == "gguf") return "```sh\nllama-cli -m model.gguf\n```\n";
  if (format == "gguf-adapter") {
    return "```sh\nllama-cli -m base.gguf --lora adapter.gguf\n```\n\n"
           "`base.gguf` is the base model as a GGUF file.\n";
  }
  if (format == "params") {
    return "`params.safetensors` holds bare parameters; names are paths joined with slashes.\n";
  }
  if (format == "hf") {
    return "```python\nfrom transformers import AutoModelForCausalLM\n\n"
           "model = AutoModelForCausalLM.from_pretrained(\"this/folder\")\n```\n";
  }
  return fmt::format(
      "```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
      "base = AutoModelForCausalLM.from_pretrained({})\n"
      "model = PeftModel.from_pretrained(base, \"this/folder\")\n```\n",
      quoted(recipe.model));
}

}  // namespace

std::string model_card(const fs::path& run, const Recipe& recipe, std::string_view format) {
  const bool full = recipe.training.method == TrainingMethod::kFull;
  const bool adapter = format == "peft" || format == "gguf-adapter";
  std::string text = "---\n";
  text += fmt::format("base_model: {}\n", quoted(recipe.model));
  if (format == "peft") text += "library_name: peft\n";
  if (format == "hf") text += "library_name: transformers\n";
  text += "pipeline_tag: text-generation\n";
  text += fmt::format("tags:\n- graft\n- {}\n---\n\n", full ? "full-fine-tuning" : "lora");

  text += fmt::format("# {} of {}\n\n", adapter ? "LoRA adapter" : "Fine-tuned weights",
                      fs::path(recipe.model).filename().string());
  text += "Trained with graft.\n\n## Base model\n\n" + fmt::format("`{}`\n\n", recipe.model);
  text += fmt::format("## Data\n\nTrained on `{}`", recipe.data.train);
  if (recipe.data.eval.empty()) text += "; nothing was held out.\n\n";
  else text += fmt::format("; evaluated on `{}`.\n\n", recipe.data.eval);
  text += "## Metrics\n\n" + metrics_section(run) + "\n";
  text += "## How to load it\n\n" + usage(recipe, format) + "\n";
  text += "## Recipe\n\n```yaml\n" + format_recipe(recipe) + "```\n";
  return text;
}

}  // namespace graft
