#pragma once
// How llama.cpp lays a model out in a GGUF file: the names of its tensors, the order of the rows of
// q and k, and the metadata that states a configuration.
//
//   gguf_tensor_name("model.layers.3.self_attn.q_proj.weight");  // "blk.3.attn_q.weight"
//   Tensor stored = to_gguf_rows(config, name, weight);          // and back: from_gguf_rows
//
// Source: the GGUF specification and llama.cpp's converter of Hugging Face models.

#include <optional>
#include <string>

#include "base/tensor.h"
#include "formats/gguf_writer.h"
#include "models/config.h"

namespace graft {

// The name that a parameter has in GGUF files.
std::string gguf_tensor_name(const std::string& parameter);

// Whether llama.cpp's files of this model hold the rows of q and k in another order.
bool gguf_permutes_rows(const ModelConfig& config);

// The rows of a parameter (or of a low-rank factor with the same rows), values or packed blocks, in
// the order of the file, and back; everything but q and k of some families stays as it is. Row i of
// the first half of a head stands at 2i and row i of the second half at 2i + 1.
Tensor to_gguf_rows(const ModelConfig& config, const std::string& parameter, const Tensor& rows);
Tensor from_gguf_rows(const ModelConfig& config, const std::string& parameter,
                      const Tensor& stored);

// Writes <architecture>.* and the general.* keys that state what the file is. Raises Error for what
// such files cannot say: a family without an architecture, sliding windows, other activations, a
// scaling of the rotary frequencies that the architecture does not know.
void write_gguf_config(const ModelConfig& config, GgufMetadata& metadata);

// The architecture of the model's GGUF files; raises Error if there is none.
std::string gguf_architecture(const ModelConfig& config);

// What the rotary frequencies are divided by, [D / 2], where the metadata cannot say it by name:
// the tensor "rope_freqs.weight".
std::optional<Tensor> gguf_rope_divisors(const ModelConfig& config);

}  // namespace graft
