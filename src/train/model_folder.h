#pragma once
// Models written as Hugging Face folders that load by themselves: configuration, weights,
// tokenizer, chat template, generation settings.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

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

}  // namespace graft
