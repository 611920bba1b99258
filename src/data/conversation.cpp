#include "data/conversation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "data/messages.h"
#include "data/row_json.h"

namespace graft {
namespace {

using nlohmann::ordered_json;

struct Columns {
  DataFormat format;
  std::vector<const char*> required;
};

const std::vector<Columns>& known_columns() {
  static const std::vector<Columns> kColumns = {
      {DataFormat::kTokenized, {"input_ids"}},
      {DataFormat::kMessages, {"messages"}},
      {DataFormat::kShareGpt, {"conversations"}},
      {DataFormat::kPromptCompletion, {"prompt", "completion"}},
      {DataFormat::kAlpaca, {"instruction", "output"}},
      {DataFormat::kText, {"text"}},
  };
  return kColumns;
}

bool has_columns(const ordered_json& row, const Columns& columns) {
  for (const char* key : columns.required) {
    if (!row.contains(key)) return false;
  }
  return true;
}

std::string columns_of(const ordered_json& row) {
  std::string names;
  for (const auto& [key, value] : row.items()) names += (names.empty() ? "" : ", ") + key;
  return names.empty() ? "none" : names;
}

// The column's value; a list or object that was written as a text of JSON is parsed.
ordered_json take_structure(ordered_json& row, const char* key, const std::string& where) {
  ordered_json value = std::move(row[key]);
  if (!value.is_string()) return value;
  return parse_json_text(value.get_ref<const std::string&>(), fmt::format("{}: {}", where, key));
}

std::string take_text(ordered_json& row, const char* key, const std::string& where) {
  ordered_json& value = row[key];
  if (!value.is_string()) {
    throw Error(fmt::format("\"{}\" must be text, not {}", key, value.type_name()), where);
  }
  return std::move(value.get_ref<std::string&>());
}

// The text of a column that may be absent, null or empty.
std::string take_optional_text(ordered_json& row, const char* key, const std::string& where) {
  if (!row.contains(key) || row[key].is_null()) return {};
  return take_text(row, key, where);
}

bool is_list_column(const ordered_json& value) {
  if (!value.is_string()) return value.is_array();
  // A prompt may well be JSON itself: only a list of messages counts.
  const std::string& text = value.get_ref<const std::string&>();
  if (!text.starts_with("[{")) return false;
  const ordered_json list = ordered_json::parse(text, nullptr, false);
  if (!list.is_array()) return false;
  return std::all_of(list.begin(), list.end(), [](const ordered_json& message) {
    return message.is_object() && message.contains("role");
  });
}

void take_tools(ordered_json& source, const std::string& where, NormalRow& row) {
  if (!source.contains("tools") || source["tools"].is_null()) return;
  if (source["tools"].is_string() && source["tools"].get_ref<const std::string&>().empty()) return;
  row.tools = take_structure(source, "tools", where);
  if (!row.tools.is_array()) {
    throw Error(fmt::format("\"tools\" must be a list, not {}", row.tools.type_name()), where);
  }
  for (const ordered_json& tool : row.tools) {
    if (!tool.is_object()) throw Error("each of \"tools\" must be an object", where);
  }
  if (row.tools.empty()) row.tools = nullptr;
}

void take_variables(ordered_json& source, const std::string& where, NormalRow& row) {
  constexpr const char* kKey = "chat_template_kwargs";
  if (!source.contains(kKey) || source[kKey].is_null()) return;
  row.variables = take_structure(source, kKey, where);
  if (!row.variables.is_object()) {
    throw Error(fmt::format("\"{}\" must be an object", kKey), where);
  }
}

void finish_conversation(ordered_json& source, const FormatRules& rules, const std::string& where,
                         NormalRow& row) {
  row.shape = NormalRow::Shape::kConversation;
  take_tools(source, where, row);
  take_variables(source, where, row);
  if (row.messages.empty()) throw Error("the conversation has no messages", where);
  if (rules.columnar) {  // absent keys are null there, inside of tools and tool calls as well
    drop_nulls(row.tools);
    for (ordered_json& message : row.messages) {
      for (ordered_json& value : message) drop_nulls(value);
    }
  }
  note_turns(row);
}

void normalize_prompt_completion(ordered_json& source, const FormatRules& rules,
                                 const std::string& where, NormalRow& row) {
  const bool lists = is_list_column(source["prompt"]);
  if (lists != is_list_column(source["completion"])) {
    throw Error("one of \"prompt\" and \"completion\" is a list of messages, the other is not",
                where, "give both as texts or both as lists of messages");
  }
  if (!lists) {
    row.shape = NormalRow::Shape::kPromptCompletion;
    row.prompt = take_text(source, "prompt", where);
    row.completion = take_text(source, "completion", where);
    if (row.completion.empty())
      row.notes.push_back("has an empty completion: only its end token can be trained");
    return;
  }
  append_messages(take_structure(source, "prompt", where), "prompt", rules.template_source, where,
                  row);
  row.first_completion = row.messages.size();
  append_messages(take_structure(source, "completion", where), "completion", rules.template_source,
                  where, row);
  finish_conversation(source, rules, where, row);
}

// Earlier turns of an alpaca row: [[instruction, output], ...].
void append_history(ordered_json& source, const std::string& where, NormalRow& row) {
  if (!source.contains("history") || source["history"].is_null()) return;
  if (source["history"].is_string() && source["history"].get_ref<const std::string&>().empty())
    return;
  const ordered_json history = take_structure(source, "history", where);
  const auto refuse = [&] {
    throw Error("\"history\" must be a list of pairs of texts: [[instruction, output], ...]",
                where);
  };
  if (!history.is_array()) refuse();
  for (const ordered_json& pair : history) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      refuse();
    append_turn("user", pair[0].get<std::string>(), row);
    append_turn("assistant", pair[1].get<std::string>(), row);
  }
}

void normalize_alpaca(ordered_json& source, const FormatRules& rules, const std::string& where,
                      NormalRow& row) {
  std::string question = take_text(source, "instruction", where);
  const std::string input = take_optional_text(source, "input", where);
  if (!input.empty()) question += "\n\n" + input;
  std::string output = take_text(source, "output", where);
  const std::string system = take_optional_text(source, "system", where);
  if (rules.chat_template) {
    if (!system.empty()) append_turn("system", system, row);
    append_history(source, where, row);
    append_turn("user", std::move(question), row);
    append_turn("assistant", std::move(output), row);
    return finish_conversation(source, rules, where, row);
  }
  append_history(source, where, row);
  if (!row.messages.empty()) {
    throw Error("\"history\" needs a chat template, and the model has none", where,
                "give data.chat_template");
  }
  row.shape = NormalRow::Shape::kPromptCompletion;
  row.prompt = (system.empty() ? "" : system + "\n\n") + question + "\n\nAnswer:\n";
  row.completion = std::move(output);
  if (row.completion.empty())
    row.notes.push_back("has an empty completion: only its end token can be trained");
}

std::vector<int32_t> take_ids(ordered_json& source, const char* key, int64_t least,
                              const std::string& where) {
  const ordered_json list = take_structure(source, key, where);
  if (!list.is_array()) {
    throw Error(fmt::format("\"{}\" must be a list of integers, not {}", key, list.type_name()),
                where);
  }
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const ordered_json& value : list) {
    const bool integer = value.is_number_integer();
    // Beyond 63 bits a value is stored as unsigned; it must not turn negative here.
    const bool huge = value.is_number_unsigned() &&
                      value.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()};
    const int64_t id = integer && !huge ? value.get<int64_t>() : 0;
    if (!integer || huge || id < least) {
      throw Error(fmt::format("\"{}\"[{}] is {}, not a token id", key, ids.size(),
                              value.dump().substr(0, 40)),
                  where);
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void take_labels(ordered_json& source, const std::string& where, NormalRow& row) {
  constexpr int32_t kIgnored = -100;
  if (!source.contains("labels") || source["labels"].is_null()) return;
  row.labels = take_ids(source, "labels", kIgnored, where);
  if (row.labels.size() != row.input_ids.size()) {
    throw Error(fmt::format("\"labels\" has {} entries, \"input_ids\" has {}", row.labels.size(),
                            row.input_ids.size()),
                where, "labels are aligned with input_ids, not shifted");
  }
  for (size_t i = 0; i < row.labels.size(); ++i) {
    if (row.labels[i] == kIgnored || row.labels[i] == row.input_ids[i]) continue;
    throw Error(
        fmt::format("\"labels\"[{}] is {}, where \"input_ids\" has {}", i, row.labels[i],
                    row.input_ids[i]),
        where,
        "a label repeats its token, or is -100 where nothing is trained; labels are not shifted");
  }
}

// Padding that a tokenizer has written: what attention_mask hides at the ends is no part of the
// row.
void cut_padding(ordered_json& source, const std::string& where, NormalRow& row) {
  if (!source.contains("attention_mask") || source["attention_mask"].is_null()) return;
  const std::vector<int32_t> mask = take_ids(source, "attention_mask", 0, where);
  if (mask.size() != row.input_ids.size()) {
    throw Error(fmt::format("\"attention_mask\" has {} entries, \"input_ids\" has {}", mask.size(),
                            row.input_ids.size()),
                where);
  }
  const auto hidden = [](int32_t value) { return value == 0; };
  const auto begin = std::find_if_not(mask.begin(), mask.end(), hidden);
  const auto end = std::find_if_not(mask.rbegin(), mask.rend(), hidden).base();
  if (begin == mask.end()) throw Error("\"attention_mask\" hides every token", where);
  if (const auto other = std::find_if(begin, end, [](int32_t value) { return value != 1; });
      other != end) {
    throw Error(fmt::format("\"attention_mask\"[{}] is {}", other - mask.begin(), *other), where,
                "it may be 0 only where a row is padded, before or behind its tokens");
  }
  const auto first = begin - mask.begin(), last = end - mask.begin();
  const auto cut = [&](std::vector<int32_t>& ids) {
    if (ids.empty()) return;
    ids.erase(ids.begin() + last, ids.end());
    ids.erase(ids.begin(), ids.begin() + first);
  };
  cut(row.input_ids);
  cut(row.labels);
}

void normalize_tokens(ordered_json& source, const std::string& where, NormalRow& row) {
  row.shape = NormalRow::Shape::kTokens;
  row.input_ids = take_ids(source, "input_ids", 0, where);
  if (row.input_ids.empty()) throw Error("\"input_ids\" is empty", where);
  take_labels(source, where, row);
  cut_padding(source, where, row);
}

}  // namespace

DataFormat detect_format(const ordered_json& row, const std::string& where,
                         std::vector<std::string>* also) {
  DataFormat found = DataFormat::kAuto;
  for (const Columns& columns : known_columns()) {
    if (!has_columns(row, columns)) continue;
    if (found == DataFormat::kAuto) found = columns.format;
    else if (also != nullptr) also->push_back(std::string(data_format_name(columns.format)));
  }
  if (found != DataFormat::kAuto) return found;
  throw Error(
      fmt::format("no known format has these columns: {}", columns_of(row)), where,
      "rename them to messages, conversations, prompt and completion, instruction and output, "
      "text, or input_ids");
}

NormalRow normalize_row(ordered_json source, const FormatRules& rules, const std::string& where) {
  for (const Columns& columns : known_columns()) {
    if (columns.format != rules.format) continue;
    for (const char* key : columns.required) {
      if (source.contains(key)) continue;
      throw Error(fmt::format("\"{}\" is missing; the row has: {}", key, columns_of(source)), where,
                  fmt::format("every row must be of one format (data.format: {})",
                              data_format_name(rules.format)));
    }
  }
  NormalRow row;
  row.messages = ordered_json::array();
  switch (rules.format) {
    case DataFormat::kMessages:
      append_messages(take_structure(source, "messages", where), "messages", rules.template_source,
                      where, row);
      finish_conversation(source, rules, where, row);
      break;
    case DataFormat::kShareGpt: {
      if (source.contains("system") && !source["system"].is_null()) {
        const std::string system = take_optional_text(source, "system", where);
        if (!system.empty()) append_turn("system", system, row);
      }
      append_sharegpt(take_structure(source, "conversations", where), "conversations",
                      rules.template_source, where, row);
      finish_conversation(source, rules, where, row);
      break;
    }
    case DataFormat::kPromptCompletion:
      normalize_prompt_completion(source, rules, where, row);
      break;
    case DataFormat::kAlpaca: normalize_alpaca(source, rules, where, row); break;
    case DataFormat::kText:
      row.shape = NormalRow::Shape::kText;
      row.text = take_text(source, "text", where);
      break;
    case DataFormat::kTokenized: normalize_tokens(source, where, row); break;
    case DataFormat::kAuto: GRAFT_CHECK(false, "the format is not decided");
  }
  return row;
}

}  // namespace graft
