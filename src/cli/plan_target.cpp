#include "cli/plan_target.h"

#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "cli/plan_report.h"
#include "pjrt/compile_ahead.h"
#include "pjrt/mesh_program.h"
#include "train/flops.h"
#include "train/plan.h"
#include "train/process.h"

namespace graft {
namespace {

using Json = nlohmann::ordered_json;

struct TargetStep {
  pjrt::Target target;
  std::unique_ptr<PlannedStep> planned;
  ShardingTable table;
  std::unique_ptr<Graph> graph;
  pjrt::MeshProgram program;
};

TargetStep make_step(const std::string& name, const Recipe& recipe) {
  TargetStep step;
  const bool here = name == "cpu";
  if (!here) step.target = pjrt::parse_target(name);
  if (step.target.plugin == "cpu") step.target.devices = recipe.compute.virtual_devices;
  step.planned = plan_step(recipe, {.devices = step.target.devices,
                                    .accelerator = !here && step.target.plugin != "cpu"});
  step.target.devices = step.planned->mesh.devices();
  step.table = sharding_table(*step.planned, step.planned->shape);
  step.graph = build_train_step(step.planned->options, step.planned->shape);
  step.program =
      pjrt::emit_for_mesh(*step.graph, step.table.mesh, axis_rules(recipe), step.table.shardings());
  return step;
}

int64_t capacity_of(const TargetStep& step, const pjrt::AheadResult& result) {
  if (result.capacity_bytes > 0) return result.capacity_bytes;
  if (step.target.memory_bytes > 0) return step.target.memory_bytes;
  return available_memory_bytes() / step.target.devices;  // devices of the host share its memory
}

// Bytes of one device while a step runs.
int64_t needed_bytes(const pjrt::AheadResult& result) {
  return result.memory ? result.memory->total_bytes() : result.needed_bytes;
}

// Nothing: the compiler failed for another reason than memory.
std::optional<bool> verdict(const TargetStep& step, const pjrt::AheadResult& result) {
  if (result.memory) return needed_bytes(result) <= capacity_of(step, result);
  if (result.out_of_memory) return false;
  return std::nullopt;
}

void add_result(Json& report, const TargetStep& step, const pjrt::AheadResult& result) {
  const int64_t capacity = capacity_of(step, result);
  Json compiler = {{"seconds", result.seconds}};
  if (!result.device_kind.empty()) compiler["device_kind"] = result.device_kind;
  if (result.flops > 0) compiler["flops_per_device"] = result.flops;
  Json memory = Json::object();
  if (result.memory) {
    const pjrt::MemoryStatistics& m = *result.memory;
    memory = {{"argument_bytes", m.argument_bytes}, {"output_bytes", m.output_bytes},
              {"alias_bytes", m.alias_bytes},       {"temporary_bytes", m.temporary_bytes},
              {"code_bytes", m.code_bytes},         {"peak_bytes", m.peak_bytes},
              {"total_bytes", m.total_bytes()}};
  } else if (result.out_of_memory) {
    memory["total_bytes"] = result.needed_bytes;
  }
  memory["capacity_bytes"] = capacity;
  report["memory_per_device"] = std::move(memory);
  const std::optional<bool> fits = verdict(step, result);
  report["fits"] = fits ? Json(*fits) : Json(nullptr);
  if (fits) report["margin_bytes"] = capacity - needed_bytes(result);
  if (!result.failure.empty()) compiler["failure"] = result.failure;
  report["compiler"] = std::move(compiler);
  if (!result.collectives) {
    report["collectives"] = nullptr;
    return;
  }
  Json collectives = Json::object();
  for (const auto& [kind, counted] : *result.collectives) {
    collectives[kind] = {{"count", counted.count}, {"bytes", counted.bytes}};
  }
  report["collectives"] = std::move(collectives);
}

// Changes that save memory, the least costly first; each is tried as a whole recipe.
std::vector<std::vector<std::string>> changes_of(const Recipe& recipe, const Mesh& mesh) {
  std::vector<std::vector<std::string>> changes;
  const TrainingOptions& t = recipe.training;
  std::vector<std::string> kept;  // each change stands on those before it
  const auto add = [&](const std::vector<std::string>& more) {
    kept.insert(kept.end(), more.begin(), more.end());
    changes.push_back(kept);
  };
  if (t.remat != Remat::kFull) add({"training.remat=full"});
  if (t.per_device_batch_size > 1) {
    const int64_t accumulation = t.gradient_accumulation_steps * t.per_device_batch_size;
    add({"training.per_device_batch_size=1",
         fmt::format("training.gradient_accumulation_steps={}", accumulation)});
  }
  if (mesh.devices() > mesh.size("fsdp")) {
    add({fmt::format("mesh={{fsdp: {}}}", mesh.devices())});
  }
  if (recipe.data.max_length >= 128) {
    add({fmt::format("data.max_length={}", recipe.data.max_length / 2)});
  }
  return changes;
}

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, " "));
}

// Compiles one change after the other until one fits.
Json find_suggestion(const TargetPlanOptions& options, const TargetStep& step) {
  Json tried = Json::array();
  for (const std::vector<std::string>& change :
       changes_of(step.planned->recipe, step.planned->mesh)) {
    info("it does not fit; trying {}", joined(change));
    Json attempt = {{"change", joined(change)}};
    try {
      const TargetStep changed = make_step(options.target, options.recipe(change));
      const pjrt::AheadResult result = pjrt::compile_ahead(
          {changed.target, changed.program.text, changed.target.devices, "", ""});
      const std::optional<bool> fits = verdict(changed, result);
      attempt["fits"] = fits ? Json(*fits) : Json(nullptr);
      if (fits) attempt["total_bytes"] = needed_bytes(result);
      tried.push_back(attempt);
      if (fits && *fits) break;
    } catch (const Error& e) {
      attempt["fits"] = nullptr;
      attempt["failure"] = e.what();
      tried.push_back(attempt);
    }
  }
  return tried;
}

// What holds for any change: how many devices the state alone asks for.
void add_state_remark(Json& report, const TargetStep& step, int64_t capacity) {
  const int64_t state = step.table.bytes_per_device();
  if (state <= capacity || capacity <= 0) return;
  const double devices = static_cast<double>(step.table.bytes()) / static_cast<double>(capacity);
  report["remark"] = fmt::format(
      "weights, adapters and moments alone take {:.2f} GB of a device: no batch is small enough; "
      "at "
      "least {} devices over fsdp and tensor would hold them",
      static_cast<double>(state) / 1e9, static_cast<int64_t>(devices) + 1);
}

}  // namespace

std::string target_program(const std::string& target, const Recipe& recipe) {
  return make_step(target, recipe).program.text;
}

Json plan_target(const TargetPlanOptions& options) {
  const TargetStep step = make_step(options.target, options.recipe({}));
  if (!options.load.empty()) {
    const std::string saved =
        pjrt::load_saved_program(options.load, step.target, step.program.text, step.target.devices);
    return {{"target", options.target}, {"loaded", options.load}, {"bytes", saved.size()}};
  }
  Json report = describe_plan(*step.planned, options.target);
  info("compiling for {} ({} devices)", options.target, step.target.devices);
  const pjrt::AheadResult result =
      pjrt::compile_ahead({step.target, step.program.text, step.target.devices, options.save, ""});
  add_result(report, step, result);
  add_flops(report, *step.planned, gemm_flops(*step.graph),
            step.target.flops * static_cast<double>(step.target.devices));
  const std::optional<bool> fits = verdict(step, result);
  if (fits && !*fits) {
    add_state_remark(report, step, capacity_of(step, result));
    if (options.suggest) report["suggestions"] = find_suggestion(options, step);
  }
  if (!options.save.empty() && result.memory) report["saved"] = options.save;
  add_shardings(report, step.table);
  return report;
}

}  // namespace graft
