#include "pjrt/mesh_program.h"

#include "base/error.h"
#include "pjrt/emitter.h"

namespace graft::pjrt {
namespace {

NamedSharding sharding_of_bundle(const Bundle& bundle, const Type& type, const Mesh& mesh,
                                 const Shardings& shardings) {
  const auto spec_of = [&](const std::string& name) {
    const auto found = shardings.find(name);
    return found == shardings.end() ? PartitionSpec() : found->second.spec;
  };
  const PartitionSpec spec = spec_of(bundle.names.at(0));
  for (const std::string& name : bundle.names) {
    if (spec_of(name) == spec) continue;
    throw Error(fmt::format("it is sharded as {}, and {} as {}: they cannot lie in one stack",
                            to_string(spec_of(name)), bundle.names[0], to_string(spec)),
                name);
  }
  if (!bundle.stacked) return {mesh, spec};
  return {mesh, with_scan_axis(spec, type.shape.size() - 1, 0)};
}

}  // namespace

MeshProgram emit_for_mesh(const Graph& graph, const Mesh& mesh, const AxisRules& rules,
                          const Shardings& shardings) {
  MeshProgram program;
  program.lowered = lower(graph);
  const Graph& g = *program.lowered.graph;
  EmitOptions options{"step", mesh, rules, {}, {}};
  for (size_t i = 0; i < g.inputs().size(); ++i) {
    program.inputs.push_back(sharding_of_bundle(program.lowered.inputs[i],
                                                g.type(g.inputs()[i].value), mesh, shardings));
    options.input_specs.emplace_back(program.inputs.back().spec);
  }
  for (const Output& output : g.outputs()) {
    const int replaced = output.donated_input;
    program.outputs.push_back(replaced < 0 ? NamedSharding{mesh, {}}
                                           : program.inputs[static_cast<size_t>(replaced)]);
    options.output_specs.emplace_back(program.outputs.back().spec);
  }
  program.text = emit_stablehlo(g, options);
  return program;
}

}  // namespace graft::pjrt
