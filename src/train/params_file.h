#pragma once
// Bare parameters in one safetensors file, under the names and shapes of any layout
// (models/parameter_layout.h): the trained state reduced to weights. An adapter stands beside the
// weights that it adapts, not merged; its configuration is in the file's metadata.
//
//   const ParamsFile file = read_params_file("params.safetensors", config);
//   file.tensors.at("model.layers.0.self_attn.q_proj.weight");

#include <filesystem>
#include <optional>

#include "adapters/adapter_file.h"
#include "models/parameter_layout.h"
#include "models/weights.h"

namespace graft {

// Weights in `dtype`, or as they are stored; low-rank factors in `dtype`, or f32.
void write_params_file(const std::filesystem::path& path, const ModelConfig& config,
                       const ParameterLayout& layout, const BaseWeights& base,
                       const AdapterPlan& plan, const AdapterConfig& adapter,
                       const std::map<std::string, Tensor>& tensors, std::optional<DType> dtype);

struct ParamsFile {
  ParameterTree tensors;                 // by Hugging Face name; all of the model's parameters
  std::optional<AdapterConfig> adapter;  // where the file holds low-rank factors
};

// Reads a file of any layout. Raises Error as from_layout does, and for parameters that are
// missing.
ParamsFile read_params_file(const std::filesystem::path& path, const ModelConfig& config);

}  // namespace graft
