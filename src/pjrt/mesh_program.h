#pragma once
// A graph as a mesh of devices runs it: lowered, with the sharding of every argument and result,
// and written as StableHLO.
//
//   const MeshProgram program = emit_for_mesh(graph, table.mesh, rules, table.shardings());
//   program.text;

#include <string>
#include <vector>

#include "pjrt/lower.h"
#include "sharding/partition_spec.h"
#include "sharding/rules.h"

namespace graft::pjrt {

struct MeshProgram {
  Lowered lowered;
  std::vector<NamedSharding> inputs, outputs;  // of the lowered graph, scan axes included
  std::string text;
};

// `shardings`: of the graph's inputs by name; one that is not there is replicated. An output that
// takes the place of an input is sharded as that is, every other one replicated. Raises Error where
// the members of a stack are sharded differently.
MeshProgram emit_for_mesh(const Graph& graph, const Mesh& mesh, const AxisRules& rules,
                          const Shardings& shardings);

}  // namespace graft::pjrt
