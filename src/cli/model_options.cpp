#include "cli/model_options.h"

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/common.h"

namespace graft {

void add_model_options(CLI::App& command, ModelOptions& options) {
  command.add_option("--model", options.model, "A Hugging Face folder, or a .gguf file")
      ->required()
      ->check(not_empty());
  command.add_option("--adapter", options.adapter, "A PEFT adapter folder, or a .gguf adapter")
      ->check(not_empty());
  add_compute_options(command, options.compute);
}

LoadedModel load_model(const ModelOptions& options) {
  LoadedModel loaded{choose_compute(*options.compute, options.model), {}};
  loaded.state = load_model_state(options.model, loaded.compute.dtype);
  for (const std::string& note : loaded.state.notes) warn("{}", note);
  if (!options.adapter.empty()) attach_adapter_folder(loaded.state, options.adapter);
  return loaded;
}

}  // namespace graft
