#include "cli/common.h"

#include <CLI/CLI.hpp>

#include "base/error.h"

namespace graft {

void add_compute_options(CLI::App& command, const std::shared_ptr<ComputeOptions>& options) {
  const auto add = [&](const std::string& name, const std::string& help) {
    // The recipe's own reader decides, so that a value means the same in both places.
    const auto set = [options, name](const std::string& value) {
      try {
        const std::string setting = fmt::format("compute.{}={}", name, value);
        const Recipe recipe = parse_recipe("", "", std::span(&setting, 1));
        if (name == "dtype") options->dtype = recipe.compute.dtype;
        if (name == "threads") options->threads = recipe.compute.threads;
        if (name == "executor") options->executor = recipe.compute.executor;
      } catch (const Error& e) {
        throw CLI::ValidationError("--" + name, e.problem());
      }
    };
    command.add_option_function<std::string>("--" + name, set, help);
  };
  add("dtype", "auto, f32 or bf16: the type of the products (default auto)");
  add("threads", "threads to use; 0: every core (default)");
  add("executor", "native: what runs the graph (default native)");
}

}  // namespace graft
