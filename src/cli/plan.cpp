// graft plan RECIPE.yaml [key=value ...] [--target T] [--json]: what a run would need.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/plan_report.h"
#include "cli/plan_target.h"
#include "pjrt/compile_ahead.h"
#include "train/flops.h"
#include "train/plan.h"
#include "train/process.h"

namespace graft {
namespace {

using Json = nlohmann::ordered_json;

struct PlanCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  std::string target = "cpu", print, save, load;
  double memory_gb = 0;  // 0: what is there
  bool json = false, no_suggestions = false;

  Recipe load_recipe_with(const std::vector<std::string>& more) const {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return load_recipe(recipe, all);
  }
};

Json plan_native(const PlanCommand& command) {
  const std::unique_ptr<PlannedStep> planned =
      plan_step(command.load_recipe_with({}), {.devices = 1});
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
  if (!command.print.empty()) {
    print_text(target_program(command.target, command.load_recipe_with({})));
    return;
  }
  const bool native = command.target == "cpu";
  if (native && !(command.save + command.load).empty()) {
    throw CLI::ValidationError("--save, --load",
                               "the native executor compiles at the start of a run");
  }
  if (!native && command.memory_gb > 0) {
    throw CLI::ValidationError("--memory", "a target's memory is known");
  }
  const Json report =
      native ? plan_native(command)
             : plan_target({command.target, command.save, command.load, !command.no_suggestions,
                            [&](const std::vector<std::string>& more) {
                              return command.load_recipe_with(more);
                            }});
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
  command->add_option(
      "--target", options->target,
      "The machine: cpu (default), pjrt:cpu, h100:8, v5e:4x4, ...; see docs/plan.md");
  command->add_option("--memory", options->memory_gb,
                      "Memory of the machine in GB (default: what it has free now)");
  command->add_option("--print", options->print, "stablehlo: print the step's program instead")
      ->check(CLI::IsMember({"stablehlo"}));
  command->add_option("--save", options->save, "Save the program that was compiled for the target");
  command->add_option("--load", options->load, "Check a saved program against recipe and target");
  command->add_flag("--no-suggestions", options->no_suggestions,
                    "Where it does not fit, do not look for what would");
  command->add_flag("--json", options->json, "One JSON object on stdout");
  command->callback([options] { run_plan(*options); });
}

void add_compile_ahead_command(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(pjrt::kCompileAheadCommand, "Compile the job in a folder");
  command->group("");  // not for people: graft plan starts it
  command->add_option("FOLDER", *folder)->required();
  command->callback([folder] { pjrt::run_compile_ahead_child(*folder); });
}

}  // namespace graft
