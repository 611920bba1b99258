#pragma once
// A merged model as one GGUF file, with tokenizer and chat template: what llama.cpp loads.
//
// Of a GGUF base every key is carried over and the tensors keep their order; of a Hugging Face
// folder the metadata is made from its configuration and tokenizer.

#include <filesystem>
#include <optional>
#include <string>

#include "train/merged_weights.h"

namespace graft {

struct GgufExport {
  const std::filesystem::path& base;
  const ModelConfig& config;
  std::string name;            // general.name, where the base states none
  std::optional<DType> dtype;  // of matrices; none: as a folder stores most of them, f32 of a GGUF
};

// Vectors are f32, as llama.cpp asks for.
void write_gguf_model(const std::filesystem::path& path, const GgufExport& what,
                      MergedWeights& weights);

}  // namespace graft
