#pragma once
// The tokenizer of a Hugging Face folder as the metadata of a GGUF file: the way back of
// text/gguf_tokenizer.h.
//
// What a GGUF file cannot say is refused: a rule to split text that has no name there, a kind of
// tokenizer other than the two. Before anything is given back the description is read again, and
// must give the same ids as the original on texts that tell such rules apart.
//
//   const TextModel text = load_text_model("model");
//   write_gguf_tokenizer(describe_tokenizer("model", text, config.vocab_size), metadata);

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "formats/gguf_writer.h"
#include "text/gguf_tokenizer.h"
#include "text/text_model.h"

namespace graft {

// `rows` is the number of rows of the embedding: ids beyond the tokenizer's get unused tokens.
GgufTokenizer describe_tokenizer(const std::filesystem::path& folder, const TextModel& text,
                                 int64_t rows);

// Only what a tokenizer.json says, without special ids and template; `name` stands for the file in
// errors.
GgufTokenizer parse_tokenizer_json(std::string_view json, const std::string& name, int64_t rows);

void write_gguf_tokenizer(const GgufTokenizer& description, GgufMetadata& metadata);

}  // namespace graft
