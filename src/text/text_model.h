#pragma once
// All that a model's path has to say about text: tokenizer, chat template, special tokens.
//
// The path is a folder with tokenizer.json (and tokenizer_config.json, chat_template.jinja,
// special_tokens_map.json, generation_config.json where there are such) or a .gguf file. What the
// folder says wins in transformers' order.
//
//   const TextModel text = load_text_model("model");
//   const auto ids = text.tokenizer.encode("Hello", false);

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace graft {

struct GgufTokenizer;

struct TextModel {
  explicit TextModel(Tokenizer loaded) : tokenizer(std::move(loaded)) {}

  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat_template;
  // A second template that transformers uses for conversations with tools, where the model has one.
  std::optional<ChatTemplate> tool_template;

  std::optional<int32_t> bos_id, eos_id, pad_id, unk_id;
  std::vector<int32_t> stop_ids;  // any of these ends a generation; eos_id among them
  bool adds_bos = false;          // encoding with special tokens puts bos_id first
  bool adds_eos = false;          // ... and eos_id last

  std::map<std::string, std::string> special_tokens;  // "bos_token": "<s>", as templates see them
  std::string tokenizer_json;  // of a GGUF: what its tokenizer.json would be; empty for a folder

  // The template for a conversation; raises Error, saying so, if the model has none.
  const ChatTemplate& template_for(const Conversation& conversation) const;
};

// Whether the path holds a tokenizer at all.
bool has_tokenizer(const std::filesystem::path& path);

// `template_file`, if not empty, is used instead of the model's own templates.
TextModel load_text_model(const std::filesystem::path& path,
                          const std::filesystem::path& template_file = "");
TextModel text_model_from_gguf(const GgufTokenizer& description,
                               const std::filesystem::path& template_file = "");

}  // namespace graft
