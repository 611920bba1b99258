// graft train RECIPE.yaml [key=value ...]

#include "train/trainer.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"

namespace graft {

void add_train_command(CLI::App& app) {
  struct Options {
    std::string recipe;
    std::vector<std::string> overrides;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train", "Fine-tune a model as a recipe says");
  command->add_option("RECIPE", options->recipe, "A YAML file; docs/recipe.md lists its keys")
      ->required();
  command->add_option("OVERRIDES", options->overrides, "key=value, as in training.max_steps=10");
  command->callback([options] { run_training(load_recipe(options->recipe, options->overrides)); });
}

}  // namespace graft
