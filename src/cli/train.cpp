// graft train RECIPE.yaml [key=value ...] [--force-resume]

#include "train/trainer.h"

#include <signal.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/common.h"

namespace graft {
namespace {

// Set by the handler; a signal handler can reach nothing but such variables.
volatile sig_atomic_t received_signal = 0;

extern "C" void on_stop_signal(int signal) {
  const bool second = received_signal != 0;
  received_signal = signal;
  ::signal(SIGTERM, SIG_DFL);  // a second one ends the process at once
  ::signal(SIGINT, SIG_DFL);
  if (second) ::raise(signal);  // they came together
}

// SIGTERM and SIGINT ask the run to stop, for as long as this lives.
class StopSignals {
 public:
  StopSignals() {
    received_signal = 0;
    for (const int signal : {SIGTERM, SIGINT}) {
      struct sigaction action {};
      action.sa_handler = on_stop_signal;
      action.sa_flags = SA_RESTART;
      ::sigaction(signal, &action, nullptr);
    }
  }
  ~StopSignals() {
    ::signal(SIGTERM, SIG_DFL);
    ::signal(SIGINT, SIG_DFL);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
};

std::string received_name() { return received_signal == SIGINT ? "SIGINT" : "SIGTERM"; }

void train(const std::string& file, const std::vector<std::string>& overrides, bool force) {
  Recipe recipe = load_recipe(file, overrides);
  TrainingControl control;
  control.force_resume = force;
  std::optional<StopSignals> signals;
  if (recipe.training.save_on_exit) {
    signals.emplace();
    control.stop_requested = [] { return received_signal != 0; };
    control.stopped_by = received_name;
  }
  run_training(std::move(recipe), control);
}

}  // namespace

void add_train_command(CLI::App& app) {
  struct Options {
    std::string recipe;
    std::vector<std::string> overrides;
    bool force_resume = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train", "Fine-tune a model as a recipe says");
  command->add_option("RECIPE", options->recipe, "A YAML file; docs/recipe.md lists its keys")
      ->required()
      ->check(not_empty());
  command->add_option("OVERRIDES", options->overrides, "key=value, as in training.max_steps=10");
  command->add_flag("--force-resume", options->force_resume,
                    "Go on from a checkpoint although the recipe differs in what decides the run");
  command->callback(
      [options] { train(options->recipe, options->overrides, options->force_resume); });
}

}  // namespace graft
