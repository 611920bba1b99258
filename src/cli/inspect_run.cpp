#include "cli/inspect_run.h"

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "cli/text_plot.h"
#include "formats/json.h"
#include "train/recipe.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Points = std::vector<std::pair<double, double>>;

struct Curves {
  Points loss, eval_loss, learning_rate, grad_norm;
  nlohmann::json last_step, last_evaluation;
};

Curves read_curves(const fs::path& run) {
  Curves curves;
  const fs::path path = run / "metrics.jsonl";
  std::ifstream lines(path);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (lines.eof()) break;  // a line without its end: it was being written
    nlohmann::json row = parse_json(line, fmt::format("{}:{}", path.string(), number));
    const auto add = [&](const char* key, Points& points) {
      const auto it = row.find(key);
      if (it != row.end() && it->is_number()) {
        points.emplace_back(row.at("step").get<double>(), it->get<double>());
      }
    };
    add("loss", curves.loss);
    add("eval_loss", curves.eval_loss);
    add("learning_rate", curves.learning_rate);
    add("grad_norm", curves.grad_norm);
    (row.contains("eval_loss") ? curves.last_evaluation : curves.last_step) = std::move(row);
  }
  return curves;
}

// By name and step alone: `graft checkpoint verify` reads every byte.
Json checkpoint_list(const fs::path& run, Json& j) {
  Json list = Json::array();
  const CheckpointFolder checkpoints = CheckpointFolder::of_run(run);
  for (const int64_t step : checkpoints.steps()) {
    const fs::path manifest = checkpoints.place_of(step) / kManifestName;
    Json entry = {{"step", step}, {"path", checkpoints.place_of(step).string()}};
    try {
      const Manifest m = parse_manifest(read_text_file(manifest), manifest.string());
      uint64_t bytes = 0;
      for (const CheckpointFile& file : m.files) bytes += file.bytes;
      entry["bytes"] = bytes;
      entry["tokens"] = m.progress.tokens;
      j["total_steps"] = m.schedule.total_steps;
      if (m.progress.best_evaluation) {
        j["best_evaluation"] = {{"step", m.progress.best_evaluation->step},
                                {"eval_loss", m.progress.best_evaluation->loss}};
      }
    } catch (const Error& error) {
      entry["damaged"] = error.what();
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json artefact_list(const fs::path& run) {
  Json artefacts = Json::array();
  std::vector<fs::path> entries(fs::directory_iterator(run), fs::directory_iterator{});
  std::sort(entries.begin(), entries.end());
  for (const fs::path& path : entries) {
    const bool is_artefact = path.extension() == ".gguf" ||
                             fs::exists(path / "adapter_config.json") ||
                             (fs::is_directory(path) && fs::exists(path / "config.json"));
    if (is_artefact && !path.filename().string().starts_with(".")) {
      artefacts.push_back(path.string());
    }
  }
  return artefacts;
}

}  // namespace

Json inspect_run(const fs::path& run) {
  Json j = {{"kind", "run"}, {"path", run.string()}};
  const Recipe recipe = load_recipe(run / "recipe.resolved.yaml");
  j["model"] = recipe.model;
  j["data"] = recipe.data.train;
  j["method"] = training_method_name(recipe.training.method);
  const Curves curves = read_curves(run);
  if (!curves.last_step.is_null()) j["last_step"] = curves.last_step;
  if (!curves.last_evaluation.is_null()) j["last_evaluation"] = curves.last_evaluation;
  if (fs::exists(run / "audit.json")) {
    const nlohmann::json audit = read_json_file(run / "audit.json");
    for (const char* key :
         {"ok", "trainable_parameters", "total_parameters", "targets", "quantization"}) {
      if (audit.contains(key)) j[key] = audit[key];
    }
  }
  if (recipe.training.max_steps) j["total_steps"] = *recipe.training.max_steps;
  Json checkpoints = checkpoint_list(run, j);
  j["checkpoints"] = std::move(checkpoints);
  j["finished"] = fs::exists(run / "summary.json");
  j["artefacts"] = artefact_list(run);
  return j;
}

std::string describe_run(const fs::path& run) {
  const Json j = inspect_run(run);
  const Curves curves = read_curves(run);
  std::string text = fmt::format("run: {}\n", run.string());
  text += fmt::format("{} of {} on {}\n", j["method"].get<std::string>(),
                      j["model"].get<std::string>(), j["data"].get<std::string>());
  if (j.contains("trainable_parameters")) {
    text += fmt::format("trained parameters: {} of {}\n", j["trainable_parameters"].dump(),
                        j["total_parameters"].dump());
  }
  const int64_t step = j.contains("last_step") ? j["last_step"]["step"].get<int64_t>() : 0;
  int64_t saved = 0;
  for (const Json& c : j["checkpoints"]) saved = std::max(saved, c["step"].get<int64_t>());
  text += fmt::format("step {}{}: {}\n", std::max(step, saved),
                      j.contains("total_steps") ? " of " + j["total_steps"].dump() : "",
                      j["finished"].get<bool>() ? "finished"
                      : saved > 0 ? fmt::format("goes on from step {} when started again", saved)
                                  : "no checkpoint yet");
  const auto plot = [&](const char* name, const Points& points) {
    if (points.size() > 1) text += "\n" + text_plot(name, points);
  };
  plot("loss", curves.loss);
  plot("eval_loss", curves.eval_loss);
  plot("grad_norm", curves.grad_norm);
  plot("learning_rate", curves.learning_rate);
  text += "\n";
  if (j.contains("best_evaluation")) {
    text +=
        fmt::format("best evaluation: {} at step {}\n", j["best_evaluation"]["eval_loss"].dump(),
                    j["best_evaluation"]["step"].dump());
  }
  for (const Json& c : j["checkpoints"]) {
    text += fmt::format("checkpoint: {}{}\n", c["path"].get<std::string>(),
                        c.contains("damaged") ? " (damaged)" : "");
  }
  for (const Json& path : j["artefacts"]) {
    text += fmt::format("artefact: {}\n", path.get<std::string>());
  }
  return text;
}

Json inspect_checkpoint(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestName;
  const std::string text = read_text_file(path);
  parse_manifest(text, path.string());
  Json j = {{"kind", "checkpoint"}, {"path", checkpoint.string()}};
  j.update(Json::parse(text));
  return j;
}

}  // namespace graft
