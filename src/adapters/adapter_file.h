#pragma once
// Adapters as files: a folder with adapter_config.json and adapter_model.safetensors, in PEFT's
// format.

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "adapters/targets.h"
#include "base/tensor.h"

namespace graft {

using NamedTensors = std::map<std::string, Tensor>;  // by variable name ("....lora_A")

// A fresh adapter as PEFT begins one: A uniform in +-1/sqrt(in) (Kaiming with a = sqrt(5)), B zero.
// The numbers depend on the seed and the variable's name alone.
Tensor initial_adapter_value(const VariableSpec& variable, uint64_t seed);

// The weights of an adapter folder for a plan, in f32, whatever float type they are stored in.
// Raises Error naming every key that is missing, unexpected or of another shape, or holds a value
// that is not finite.
NamedTensors load_adapter(const std::filesystem::path& folder, const AdapterPlan& plan);

AdapterConfig read_adapter_folder_config(const std::filesystem::path& folder);

// The tensors of an adapter file under their keys there, in `dtype` and sorted as PEFT sorts them.
std::vector<std::pair<std::string, Tensor>> adapter_file_tensors(const AdapterPlan& plan,
                                                                 const NamedTensors& tensors,
                                                                 DType dtype = DType::kF32);

// Writes both files, each atomically, the tensors in `dtype` and sorted by key as PEFT sorts them.
// The configuration names targets explicitly, so that other tools choose the same modules.
void save_adapter(const std::filesystem::path& folder, const AdapterConfig& config,
                  const AdapterPlan& plan, const NamedTensors& tensors, DType dtype = DType::kF32);

}  // namespace graft
