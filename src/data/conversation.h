#pragma once
// Rows of every known format brought to one of four shapes.
//
//   messages           {"messages": [{"role", "content", ...}], "tools": [...]}
//   prompt_completion  {"prompt", "completion"}, both texts or both lists of messages
//   text               {"text"}
//   alpaca             {"instruction", "input", "output"}, "system" and "history" where there are
//   any sharegpt           {"conversations": [{"from", "value"}]}, speakers such as human and gpt
//   tokenized          {"input_ids", "labels"}
//
// A format is recognised by its columns; others are ignored. A list may also come as the text of
// its JSON (in a CSV column there is no other way). A row's "chat_template_kwargs" are handed to
// the template.
//
//   const DataFormat format = detect_format(object, where);
//   const NormalRow row = normalize_row(std::move(object), rules, where);

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/options.h"

namespace graft {

struct NormalRow {
  enum class Shape { kConversation, kPromptCompletion, kText, kTokens };
  Shape shape = Shape::kText;

  // kConversation
  nlohmann::ordered_json messages;   // an array; each has a known role, and content that is text
  nlohmann::ordered_json tools;      // an array, or null
  nlohmann::ordered_json variables;  // an object, or null
  size_t first_completion = 0;       // messages before it are a prompt
  std::vector<bool> excluded;        // for each message: "weight": 0 or "train": false

  std::string prompt, completion;  // kPromptCompletion
  std::string text;                // kText

  // kTokens: labels are empty where the row has none
  std::vector<int32_t> input_ids, labels;

  // What deserves to be told about a row that is accepted: "has an empty reply".
  std::vector<std::string> notes;
};

// What rows are read as.
struct FormatRules {
  DataFormat format = DataFormat::kAuto;  // never kAuto for normalize_row()
  bool chat_template = true;              // there is one: alpaca rows become conversations
  std::string_view template_source = {};  // roles that it mentions are known as well
  bool columnar = false;                  // from Parquet, where absent keys are null
};

// The format of a row by its columns; raises Error naming the columns there are. Where several
// formats fit, the first of tokenized, messages, sharegpt, prompt_completion, alpaca, text; `also`
// (if given) receives the names of the others.
DataFormat detect_format(const nlohmann::ordered_json& row, const std::string& where,
                         std::vector<std::string>* also = nullptr);

// Raises Error at `where`, naming the key, for a row that is not of the format.
NormalRow normalize_row(nlohmann::ordered_json row, const FormatRules& rules,
                        const std::string& where);

}  // namespace graft
