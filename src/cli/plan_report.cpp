#include "cli/plan_report.h"

#include <fmt/format.h>

#include "train/flops_formula.h"

namespace graft {
namespace {

using Json = nlohmann::ordered_json;

std::string gigabytes(const Json& bytes) {
  const double value = bytes.get<double>();
  const double size = value < 0 ? -value : value;
  if (size < 1e6) return fmt::format("{:.1f} kB", value / 1e3);
  if (size < 1e9) return fmt::format("{:.1f} MB", value / 1e6);
  return fmt::format("{:.2f} GB", value / 1e9);
}

}  // namespace

Json describe_plan(const PlannedStep& planned, const std::string& target) {
  Json mesh = Json::object();
  for (const auto& [axis, size] : planned.mesh.axes()) mesh[axis] = size;
  const BatchShape& shape = planned.shape;
  return {{"target", target},
          {"devices", planned.mesh.devices()},
          {"mesh", mesh},
          {"model",
           {{"model_type", planned.config.model_type},
            {"parameters", planned.parameters},
            {"trainable_parameters", planned.trained_parameters},
            {"method", training_method_name(planned.recipe.training.method)}}},
          {"dtype", dtype_name(planned.compute.dtype)},
          {"compute", planned.compute.reason},
          {"shape",
           {{"micro_batches", shape.micro_batches},
            {"batch_size", shape.batch_size},
            {"sequence_length", shape.sequence_length},
            {"targets", shape.targets},
            {"source", planned.shape_source}}}};
}

void add_flops(Json& report, const PlannedStep& planned, double graph_flops, double limit) {
  const StepFlops flops = step_flops(planned.options, planned.shape);
  report["flops"] = {{"per_step", flops.total()},
                     {"forward", flops.forward},
                     {"input_gradient", flops.input_gradient},
                     {"weight_gradient", flops.weight_gradient},
                     {"adapter", flops.adapter},
                     {"attention", flops.attention},
                     {"head", flops.head},
                     {"with_rematerialisation", graph_flops}};
  if (limit <= 0) return;
  report["gemm_limit_flops_per_second"] = limit;
  report["gemm_bound_seconds_per_step"] = graph_flops / limit;
  const double tokens = static_cast<double>(planned.shape.micro_batches * planned.shape.batch_size *
                                            planned.shape.sequence_length);
  report["gemm_bound_tokens_per_second"] = tokens * limit / graph_flops;
}

void add_shardings(Json& report, const ShardingTable& table) {
  Json rows = Json::array();
  for (const ShardingRow& row : table.rows) {
    rows.push_back({{"name", row.variable.name},
                    {"kind", variable_kind_name(row.variable.kind)},
                    {"dtype", dtype_name(row.variable.dtype)},
                    {"shape", row.variable.shape},
                    {"logical_axes", row.variable.logical_axes},
                    {"spec", to_string(without_unit_axes(row.sharding.spec, table.mesh))},
                    {"shard_shape", shard_shape(row.sharding, row.variable.shape)},
                    {"bytes", row.bytes},
                    {"bytes_per_device", row.bytes_per_device}});
  }
  report["shardings"] = std::move(rows);
  Json lost = Json::array();
  for (const LostAxis& axis : table.lost) {
    lost.push_back({{"variable", axis.variable},
                    {"dimension", axis.dimension},
                    {"logical_axis", axis.logical},
                    {"mesh_axis", axis.mesh_axis},
                    {"reason", axis.reason}});
  }
  report["lost_axes"] = std::move(lost);
  report["sharded_bytes_per_device"] = {
      {"weights", table.bytes_per_device(VariableKind::kParam)},
      {"adapters", table.bytes_per_device(VariableKind::kAdapter)},
      {"optimizer", table.bytes_per_device(VariableKind::kOptimizer)},
      {"batch", table.bytes_per_device(VariableKind::kData)}};
  report["sharding_table"] = format_table(table);
}

namespace {

std::string format_memory(const Json& memory) {
  std::string text;
  for (const auto& [name, bytes] : memory.items()) {
    std::string label = name.substr(0, name.rfind("_bytes"));
    for (char& c : label) {
      if (c == '_') c = ' ';
    }
    text += fmt::format("  {:<20} {:>12}\n", label, gigabytes(bytes));
  }
  return text;
}

}  // namespace

namespace {

std::string format_verdict(const Json& report) {
  if (report["fits"].is_null()) {
    return "no verdict: " + report["compiler"]["failure"].get<std::string>() + "\n";
  }
  const auto margin = report["margin_bytes"].get<int64_t>();
  return report["fits"].get<bool>()
             ? fmt::format("fits, with {} to spare\n", gigabytes(margin))
             : fmt::format("does not fit: {} too much\n", gigabytes(-margin));
}

std::string format_collectives(const Json& collectives) {
  if (collectives.is_null()) return "collectives: the compiler does not tell\n";
  if (collectives.empty()) return "collectives: none\n";
  std::string text = "collectives in the compiled program (those in a loop counted once)\n";
  for (const auto& [kind, counted] : collectives.items()) {
    text += fmt::format("  {:<20} {:>6} x, {:>12}\n", kind, counted["count"].get<int64_t>(),
                        gigabytes(counted["bytes"]));
  }
  return text;
}

std::string format_suggestions(const Json& report) {
  std::string text;
  if (report.contains("remark")) text += report["remark"].get<std::string>() + "\n";
  if (!report.contains("suggestions")) return text;
  for (const Json& attempt : report["suggestions"]) {
    const Json& fits = attempt["fits"];
    text += fmt::format("  with {}: {}\n", attempt["change"].get<std::string>(),
                        fits.is_null()     ? std::string("the compiler failed")
                        : fits.get<bool>() ? "it fits, with " + gigabytes(attempt["total_bytes"])
                                           : "still " + gigabytes(attempt["total_bytes"]));
  }
  return text;
}

}  // namespace

std::string format_plan(const Json& report) {
  if (report.contains("loaded")) {
    return fmt::format("{} is the program of this recipe for {} ({} bytes)\n",
                       report["loaded"].get<std::string>(), report["target"].get<std::string>(),
                       report["bytes"].get<size_t>());
  }
  const Json& model = report["model"];
  const Json& shape = report["shape"];
  std::string text = fmt::format(
      "{} of a {} model of {:.2f} billion parameters, {:.2f} million trained, in {}\n",
      model["method"].get<std::string>(), model["model_type"].get<std::string>(),
      model["parameters"].get<double>() / 1e9, model["trainable_parameters"].get<double>() / 1e6,
      report["dtype"].get<std::string>());
  text += fmt::format("step: {} x {} rows of {} tokens ({})\n",
                      shape["micro_batches"].get<int64_t>(), shape["batch_size"].get<int64_t>(),
                      shape["sequence_length"].get<int64_t>(), shape["source"].get<std::string>());
  text += report["sharding_table"].get<std::string>();
  if (report.contains("memory")) text += "memory\n" + format_memory(report["memory"]);
  if (report.contains("memory_per_device")) {
    text += fmt::format("memory of one of {} devices, by the compiler of {} ({:.1f} s)\n",
                        report["devices"].get<int64_t>(), report["target"].get<std::string>(),
                        report["compiler"]["seconds"].get<double>());
    text += format_memory(report["memory_per_device"]);
    text += format_collectives(report["collectives"]);
  }
  text += fmt::format("{:.4g} TFLOP a step, {:.4g} with what is computed again",
                      report["flops"]["per_step"].get<double>() / 1e12,
                      report["flops"]["with_rematerialisation"].get<double>() / 1e12);
  if (report.contains("gemm_bound_seconds_per_step")) {
    text += fmt::format("; at the limit of {:.4g} TFLOP/s: {:.3g} s",
                        report["gemm_limit_flops_per_second"].get<double>() / 1e12,
                        report["gemm_bound_seconds_per_step"].get<double>());
  }
  text += "\n" + format_verdict(report) + format_suggestions(report);
  if (report.contains("largest_batch")) {
    text += fmt::format("fits at most: {} rows in a micro-batch, or {} tokens in a row\n",
                        report["largest_batch"].get<int64_t>(),
                        report["longest_sequence"].get<int64_t>());
  }
  if (report.contains("saved")) text += "saved as " + report["saved"].get<std::string>() + "\n";
  return text;
}

}  // namespace graft
