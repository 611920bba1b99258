// graft data: what a recipe would train, token by token, before anything is trained.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "data/dataset.h"
#include "train/audit.h"
#include "train/data_audit.h"
#include "train/recipe.h"

namespace graft {
namespace {

struct Options {
  std::string recipe;
  std::vector<std::string> overrides;
  int64_t show = 3;
  bool json = false;
};

std::optional<TextModel> load_text(const Recipe& recipe) {
  if (!std::filesystem::exists(recipe.model)) {
    throw Error("there is no such file or folder", recipe.model, "check the recipe's model");
  }
  if (!has_tokenizer(recipe.model) && recipe.data.chat_template.empty()) return std::nullopt;
  return load_text_model(recipe.model, recipe.data.chat_template);
}

nlohmann::json json_of(const Dataset& data) {
  nlohmann::json dropped = nlohmann::json::array(), rows = nlohmann::json::array();
  for (const DroppedRow& row : data.dropped) {
    dropped.push_back({{"line", row.line}, {"reason", row.reason}, {"tokens", row.tokens}});
  }
  for (const TokenizedExample& example : *data.examples) {
    rows.push_back({{"input_ids", example.ids}, {"trained", example.trained}});
  }
  return {{"examples", data.trained_examples},     {"tokens", data.tokens},
          {"trained_tokens", data.trained_tokens}, {"warnings", data.warnings},
          {"dropped", std::move(dropped)},         {"rows", std::move(rows)}};
}

std::string summary_of(const Dataset& data) {
  return fmt::format(
      "{}: {} rows read as {}, {} dropped, {} with something to train; {} tokens (the longest row "
      "has "
      "{}), {} of them trained\n",
      data.name, data.rows, data_format_name(data.format), data.dropped.size(),
      data.trained_examples, data.tokens, data.longest, data.trained_tokens);
}

void show_data(const Options& options) {
  Recipe recipe = load_recipe(options.recipe, options.overrides);
  require_keys(recipe, {"model", "data.train"});
  resolve_recipe(recipe, today());
  const std::optional<TextModel> text = load_text(recipe);
  const TextModel* text_model = text ? &*text : nullptr;
  const auto load = [&](const std::string& path) {
    Dataset data =
        load_dataset(path, text_model, recipe.data, static_cast<int>(recipe.compute.threads));
    for (const std::string& warning : data.warnings) log_warning(warning);
    return data;
  };
  const Dataset train = load(recipe.data.train);
  std::optional<Dataset> eval;
  if (!recipe.data.eval.empty()) eval = load(recipe.data.eval);
  if (options.json) return print_json(json_of(train));

  const bool color = ::isatty(STDOUT_FILENO) != 0;
  int64_t shown = 0;
  for (const TokenizedExample& example : *train.examples) {
    if (shown++ == options.show) break;
    print_text(format_example(render_example(example, text_model), color));
  }
  print_text(summary_of(train));
  if (eval) print_text(summary_of(*eval));
}

}  // namespace

void add_data_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "data", "Show what a recipe would train, token by token, and what is wrong with the data");
  command->add_option("RECIPE", options->recipe, "A YAML file; docs/recipe.md lists its keys")
      ->required()
      ->check(not_empty());
  command->add_option("OVERRIDES", options->overrides, "key=value, as in data.max_length=512");
  command->add_option("--show", options->show, "Rows to show, from the first on")
      ->capture_default_str()
      ->check(whole_number(0, 1'000'000'000));
  command->add_flag("--json", options->json,
                    "Print one JSON value with every row: its tokens, and which are trained");
  command->callback([options] { show_data(*options); });
}

}  // namespace graft
