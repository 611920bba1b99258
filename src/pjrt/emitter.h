#pragma once
// Writes a graph as StableHLO text, with Shardy annotations where a mesh is given.
//
// The graph must be lowered (pjrt/lower.h): primitives alone, scans without lists. Every operation
// is printed in MLIR's generic form, which any version of the dialects reads. `scan` becomes
// `stablehlo.while`; products of f32 are asked for at the highest precision; what low-precision
// floats compute in f32 (docs/ir.md) is converted before and after; an output that takes the place
// of an input is an alias of it (`tf.aliasing_output`).
//
//   std::string text = emit_stablehlo(*lower(graph).graph, {});
//   client.compile(text, {});
//
// Source: github.com/openxla/stablehlo, docs/spec.md; github.com/openxla/shardy, docs.

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "sharding/partition_spec.h"
#include "sharding/rules.h"

namespace graft::pjrt {

// With a mesh of more than one device, arguments, results and the values that the graph annotates
// (ir/logical_axes.h) get the shardings that the specs and rules say; otherwise nothing of it is
// written.
struct EmitOptions {
  std::string name = "step";  // of the module
  Mesh mesh;
  AxisRules rules;  // for annotated values
  // One an input, or an output: of the lowered graph, scan axis included. Empty: left to the
  // compiler.
  std::vector<std::optional<PartitionSpec>> input_specs, output_specs;
};

std::string emit_stablehlo(const Graph& graph, const EmitOptions& options);

}  // namespace graft::pjrt
