// graft plan RECIPE.yaml [key=value ...] [--target T] [--json]: what a run would need.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/plan_report.h"
#include "train/flops.h"
#include "train/plan.h"
#include "train/process.h"

namespace graft {
namespace {

using Json = nlohmann::ordered_json;

struct PlanCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  std::string target = "cpu";
  double memory_gb = 0;  // 0: what is there
  bool json = false;
};

Json plan_native(const PlanCommand& command) {
  const std::unique_ptr<PlannedStep> planned =
      plan_step(load_recipe(command.recipe, command.overrides), {.devices = 1});
  const NativeMemory memory = native_memory(*planned, planned->shape);
  const std::unique_ptr<Graph> graph = build_train_step(planned->options, planned->shape);
  const int64_t process = resident_bytes();
  const int64_t available = command.memory_gb > 0 ? static_cast<int64_t>(command.memory_gb * 1e9)
                                                  : available_memory_bytes();
  const int64_t room = available - process, total = memory.total();
  Json report = describe_plan(*planned, "cpu");
  report["memory"] = {{"weights_bytes", memory.weights},
                      {"adapter_bytes", memory.adapters},
                      {"optimizer_bytes", memory.optimizer},
                      {"activation_bytes", memory.activations},
                      {"workspace_bytes", memory.workspace},
                      {"constant_bytes", memory.constants},
                      {"batch_bytes", memory.batch},
                      {"total_bytes", total},
                      {"process_bytes", process},
                      {"predicted_peak_bytes", total + process},
                      {"available_bytes", available}};
  report["fits"] = total <= room;
  report["margin_bytes"] = room - total;
  add_flops(report, *planned, gemm_flops(*graph), measure_gemm_limit(planned->compute.threads));
  report["largest_batch"] = largest_batch(*planned, room);
  report["longest_sequence"] = longest_sequence(*planned, room);
  add_shardings(report, sharding_table(*planned, planned->shape));
  return report;
}

void run_plan(const PlanCommand& command) {
  if (command.target != "cpu") {
    throw CLI::ValidationError("--target", fmt::format("{} is unknown", command.target));
  }
  const Json report = plan_native(command);
  if (command.json) print_json(nlohmann::json(report));
  else print_text(format_plan(report));
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto options = std::make_shared<PlanCommand>();
  CLI::App* command =
      app.add_subcommand("plan", "Say what a run would need, from the model's config.json alone");
  command->add_option("RECIPE", options->recipe, "A YAML file; docs/recipe.md lists its keys")
      ->required();
  command->add_option("OVERRIDES", options->overrides, "key=value, as in data.max_length=4096");
  command->add_option("--target", options->target, "The machine: cpu (default); see docs/plan.md");
  command->add_option("--memory", options->memory_gb,
                      "Memory of the machine in GB (default: what it has free now)");
  command->add_flag("--json", options->json, "One JSON object on stdout");
  command->callback([options] { run_plan(*options); });
}

}  // namespace graft
