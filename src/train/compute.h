#pragma once
// What a run computes with: the executor and its devices, threads and the element type of
// activations, chosen once and told.

#include <filesystem>
#include <memory>
#include <string>

#include "ir/executor.h"
#include "sharding/mesh.h"
#include "train/recipe.h"

namespace graft {

struct Compute {
  int threads = 1;
  DType dtype = DType::kF32;
  std::string reason;               // "f32: the weights are stored in f32"
  std::string executor = "native";  // or pjrt:cpu, pjrt:cuda, pjrt:tpu, pjrt:/path/of/plugin.so
  int64_t virtual_devices = 0;      // of pjrt:cpu
  MeshAxes mesh = {};
  AxisRules rules = default_axis_rules();

  bool native() const { return executor == "native"; }
};

// Raises Error where a plugin is not installed, or the mesh does not fit its devices.
std::unique_ptr<Executor> make_executor(const Compute& compute);

// `auto` computes in bf16 where the weights are stored in bf16 (so nothing is rounded) and this
// machine multiplies bf16 natively (AMX, AVX512-BF16); else in f32. threads 0 means every core this
// process may use. On an accelerator (any plugin but pjrt:cpu) it is as below.
Compute choose_compute(const ComputeOptions& options, const std::filesystem::path& model);

// The same for a device that multiplies bf16 natively. Of a folder without weights, the type that
// its config.json names decides.
Compute choose_accelerator_compute(const ComputeOptions& options,
                                   const std::filesystem::path& model);

}  // namespace graft
