#pragma once
// Models written as Hugging Face folders that load by themselves: configuration, weights,
// tokenizer, chat template, generation settings.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "formats/safetensors.h"
#include "text/text_model.h"
#include "train/state.h"

namespace graft {

// Writes a model whose base is `state`'s with the given values (any float type; asked for one at a
// time, in the order of the file) in `dtype`, or where none is given in the element type of the
// source (f32 for GGUF), sharded above 5 GB with an index. The other files of a source folder are
// carried over; of a GGUF they are made from its metadata. `text` may be null.
void save_model_folder(const std::filesystem::path& folder, const ModelState& state,
                       const TextModel* text,
                       const std::function<Tensor(const std::string& name)>& value,
                       std::optional<DType> dtype = std::nullopt);

// The parts of it: everything but the weights (config.json without a quantization_config, or with
// the given one, an object as text; stating `dtype`, where given, as the weights' type), and
// weights in shards of at most 5 GB with an index.
void write_description(const std::filesystem::path& folder, const std::filesystem::path& source,
                       const ModelConfig& config, const TextModel* text,
                       std::optional<DType> dtype = std::nullopt,
                       const std::string& quantization_config = "");
void write_shards(const std::filesystem::path& folder,
                  const std::vector<SafetensorsDeclaration>& tensors,
                  const std::function<Tensor(const std::string& name)>& value);

}  // namespace graft
