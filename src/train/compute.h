#pragma once
// What a run computes with: threads and the element type of activations, chosen once and told.

#include <filesystem>
#include <string>

#include "train/recipe.h"

namespace graft {

struct Compute {
  int threads = 1;
  DType dtype = DType::kF32;
  std::string reason;  // "f32: the weights are stored in f32"
};

// `auto` computes in bf16 where the weights are stored in bf16 (so nothing is rounded) and this
// machine multiplies bf16 natively (AMX, AVX512-BF16); else in f32. threads 0 means every core this
// process may use.
Compute choose_compute(const ComputeOptions& options, const std::filesystem::path& model);

// The same for a device that multiplies bf16 natively. Of a folder without weights, the type that
// its config.json names decides.
Compute choose_accelerator_compute(const ComputeOptions& options,
                                   const std::filesystem::path& model);

}  // namespace graft
