#pragma once
// Adapters as llama.cpp keeps them: one GGUF file, <tensor>.lora_a [rank, in] and <tensor>.lora_b
// [out, rank] for each adapted weight, and one alpha for all. A reader scales each term by alpha /
// rank, so other scales (rsLoRA, an alpha of a module's own) are folded: into that alpha where one
// serves all modules, else into lora_b. The rows of q and k stand in the order of the model's GGUF
// files.
//
//   write_gguf_adapter("adapter.gguf", config, plan, tensors, DType::kF32);
//   const GgufAdapter adapter = read_gguf_adapter("adapter.gguf", config);
//
// Source: llama.cpp's converter of PEFT adapters, and its loader.

#include <filesystem>

#include "adapters/adapter_file.h"
#include "formats/gguf.h"
#include "models/config.h"

namespace graft {

// `dtype` (f32, f16, bf16) is that of the factors.
void write_gguf_adapter(const std::filesystem::path& path, const ModelConfig& config,
                        const AdapterPlan& plan, const NamedTensors& tensors, DType dtype);

struct GgufAdapter {
  AdapterPlan plan;
  NamedTensors tensors;  // f32
};

// Raises Error, naming it, for a tensor that belongs to no linear layer of the model, of another
// shape or without its partner, for another architecture, and for values that are not finite.
GgufAdapter read_gguf_adapter(const std::filesystem::path& path, const ModelConfig& config);
// From an open file, for tests.
GgufAdapter read_gguf_adapter(const GgufFile& file, const ModelConfig& config);

}  // namespace graft
