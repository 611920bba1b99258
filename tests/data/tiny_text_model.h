#pragma once
// A tokenizer and chat template small enough to reckon by hand: one token a byte, a few merges,
// three special tokens.

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "support/temporary.h"
#include "text/text_model.h"

namespace graft::testing {

inline constexpr int32_t kEnd = 0, kStart = 1, kBegin = 2, kFirstByte = 3, kFirstMerge = 259;

// The character that byte-level vocabularies write for a byte, in UTF-8.
inline std::string byte_character(int byte) {
  const auto plain = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!plain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += plain(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

struct TinyOptions {
  bool begin_token = false;  // encoding puts kBegin first
  bool chat_template = true;
  std::string source =
      "{% for m in messages %}{{ '<|start|>' + m.role + ':' + m.content + '<|end|>;' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|start|>assistant:' }}{% endif %}";
};

// Writes tokenizer.json and tokenizer_config.json into a folder. Merges: "a" "b" to kFirstMerge,
// and
// "," "," to the next.
inline void write_tiny_tokenizer(const std::filesystem::path& folder,
                                 const TinyOptions& options = {}) {
  using nlohmann::json;
  json vocab = {{"<|end|>", kEnd}, {"<|start|>", kStart}, {"<|begin|>", kBegin}};
  for (int byte = 0; byte < 256; ++byte) vocab[byte_character(byte)] = kFirstByte + byte;
  vocab["ab"] = kFirstMerge;
  vocab[",,"] = kFirstMerge + 1;
  json added = json::array();
  for (const auto& [content, id] : {std::pair{"<|end|>", kEnd}, std::pair{"<|start|>", kStart},
                                    std::pair{"<|begin|>", kBegin}}) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", false}};
  json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array({"a b", ", ,"})}}}};
  if (options.begin_token) {
    const json special = {{"SpecialToken", {{"id", "<|begin|>"}, {"type_id", 0}}}};
    const json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const json second = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
    tokenizer["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", {special, first}},
        {"pair", {special, first, second}},
        {"special_tokens",
         {{"<|begin|>", {{"id", "<|begin|>"}, {"ids", {kBegin}}, {"tokens", {"<|begin|>"}}}}}}};
  }
  json config = {{"eos_token", "<|end|>"}, {"bos_token", "<|begin|>"}};
  if (options.chat_template) config["chat_template"] = options.source;
  std::ofstream(folder / "tokenizer.json") << tokenizer;
  std::ofstream(folder / "tokenizer_config.json") << config;
}

inline TextModel tiny_text_model(const TinyOptions& options = {}) {
  TemporaryFolder folder;
  write_tiny_tokenizer(folder.path(), options);
  return load_text_model(folder.path());
}

// The ids of plain text without merges; '^' stands for kStart, '$' for kEnd.
inline std::vector<int32_t> tiny_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) {
    ids.push_back(c == '^' ? kStart : c == '$' ? kEnd : kFirstByte + static_cast<unsigned char>(c));
  }
  return ids;
}

}  // namespace graft::testing
