#pragma once
// The PJRT executor: graphs run by XLA on the devices of a plugin, one or a mesh of them.
//
// A graph is lowered (pjrt/lower.h), written as StableHLO and compiled, or loaded from the cache on
// disk. Variables lie on the devices between runs, stacked as programs want them and sharded as the
// mesh's rules say; a program that replaces a variable gives its storage to the new value. Data is
// put on the devices when it is bound, also while a step runs.
//
//   auto executor = pjrt::make_executor({.plugin = find_plugin("cpu"), .virtual_devices = 8,
//                                        .mesh = Mesh({{"fsdp", 4}, {"tensor", 2}})});
//   executor->set_variable(spec, tensor);
//   auto program = executor->compile(graph);

#include <filesystem>
#include <memory>

#include "ir/executor.h"
#include "sharding/mesh.h"
#include "sharding/rules.h"

namespace graft::pjrt {

struct ExecutorOptions {
  std::filesystem::path plugin;
  int64_t virtual_devices = 0;  // of the CPU plugin; 0: as many as the mesh has
  MeshAxes mesh = {};           // -1: the rest of the devices; empty: one device
  AxisRules rules = default_axis_rules();
};

std::unique_ptr<Executor> make_executor(const ExecutorOptions& options);

}  // namespace graft::pjrt
