#include "data/row_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace graft {
namespace {

using nlohmann::ordered_json;
using Shape = NormalRow::Shape;

std::string_view shape_name(Shape shape) {
  switch (shape) {
    case Shape::kConversation: return "a conversation";
    case Shape::kPromptCompletion: return "a prompt with its completion";
    case Shape::kText: return "plain text";
    case Shape::kTokens: return "tokens";
  }
  return "";
}

void check_train_on(Shape shape, TrainOn train_on, const std::string& where) {
  if (train_on == TrainOn::kAuto || train_on == TrainOn::kAll) return;
  if (shape == Shape::kConversation || shape == Shape::kPromptCompletion) return;
  throw Error(
      fmt::format("data.train_on: {} does not fit {}", train_on_name(train_on), shape_name(shape)),
      where, "use data.train_on: auto");
}

// Trains every token from `begin` on. The first of a row is no target: nothing comes before it.
std::vector<uint8_t> trained_from(size_t begin, size_t size) {
  std::vector<uint8_t> trained(size, 0);
  std::fill(
      trained.begin() + static_cast<std::ptrdiff_t>(std::min(std::max<size_t>(begin, 1), size)),
      trained.end(), uint8_t{1});
  return trained;
}

// "message 3 (user): ..." as a thing to say about a row.
std::string note_of_warning(const std::string& warning) {
  const size_t open = warning.find(" (");
  const size_t close = warning.find("): ");
  if (!warning.starts_with("message ") || open == std::string::npos || close == std::string::npos) {
    return warning;
  }
  return warning.substr(open + 2, close - open - 2) + " turn: " + warning.substr(close + 3);
}

}  // namespace

RowTokenizer::RowTokenizer(const TextModel* text, const DataOptions& options)
    : text_(text),
      train_on_(options.train_on),
      variables_(options.template_variables),
      date_(options.template_date) {
  if (text_ == nullptr) return;
  finder_.emplace(text_->tokenizer);
  for (const auto* chat : {&text_->chat_template, &text_->tool_template}) {
    if (chat->has_value()) {
      maskers_[&**chat] = std::make_unique<AssistantMasker>(text_->tokenizer, **chat);
    }
  }
}

TokenizedRow RowTokenizer::tokenize(NormalRow row, const std::string& where) const {
  check_train_on(row.shape, train_on_, where);
  if (row.shape == Shape::kTokens) return tokenize_tokens(row);
  if (text_ == nullptr) {
    throw Error(
        fmt::format("a row of {} needs a tokenizer, and the model has none", shape_name(row.shape)),
        where, "give a model with tokenizer.json, or data as input_ids");
  }
  TokenizedRow result;
  switch (row.shape) {
    case Shape::kConversation: result = tokenize_conversation(row, where); break;
    case Shape::kPromptCompletion: result = tokenize_completion(row); break;
    default: result = tokenize_text(row);
  }
  result.notes.insert(result.notes.begin(), row.notes.begin(), row.notes.end());
  return result;
}

std::string RowTokenizer::variables_of(const NormalRow& row) const {
  if (row.variables.is_null() || row.variables.empty()) return variables_;
  ordered_json merged =
      variables_.empty() ? ordered_json::object() : ordered_json::parse(variables_);
  merged.update(row.variables);
  return merged.dump();
}

// Marks the turns that are not trained with "train": false, which the text layer understands.
void RowTokenizer::exclude_turns(NormalRow& row) const {
  size_t first = 0;
  const bool last_reply_only = train_on_ == TrainOn::kCompletion && row.first_completion == 0;
  if (last_reply_only) {
    for (size_t i = 0; i < row.messages.size(); ++i) {
      if (row.messages[i]["role"] == "assistant") first = i;
    }
  } else if (train_on_ != TrainOn::kAssistant && train_on_ != TrainOn::kAll) {
    first = row.first_completion;
  }
  for (size_t i = 0; i < row.messages.size(); ++i) {
    if (i < first || row.excluded[i]) row.messages[i]["train"] = false;
  }
}

TokenizedRow RowTokenizer::tokenize_conversation(NormalRow& row, const std::string& where) const {
  exclude_turns(row);
  Conversation conversation{.messages = row.messages.dump(), .tools = {}, .documents = {}};
  if (!row.tools.is_null()) conversation.tools = row.tools.dump();
  TokenizedRow result;
  try {
    const ChatTemplate& chat = text_->template_for(conversation);
    const AssistantMasker& masker = *maskers_.at(&chat);
    MaskedConversation masked =
        masker.mask(conversation, {.date = date_, .variables = variables_of(row)}, false);
    for (const std::string& warning : masked.warnings) {
      result.notes.push_back(note_of_warning(warning));
    }
    result.example.ids = std::move(masked.ids);
    result.example.trained = std::move(masked.trained);
    if (train_on_ == TrainOn::kAll) {
      result.example.trained = trained_from(0, result.example.ids.size());
      const Encoding encoding = text_->tokenizer.encode_with_offsets(masked.text, false);
      for (const AssistantSpan& span : masked.spans) {
        for (size_t i = 0; !span.trained && i < encoding.offsets.size(); ++i) {
          const ByteRange& token = encoding.offsets[i];
          const bool inside = token.begin < span.bytes.end && span.bytes.begin < token.end;
          if (inside) result.example.trained[i] = 0;
        }
      }
    }
  } catch (const Error& e) {
    throw e.at(where);
  }
  if (!result.example.trained.empty()) result.example.trained[0] = 0;
  return result;
}

std::vector<int32_t> RowTokenizer::encode_beginning(std::string_view text) const {
  std::vector<int32_t> ids = text_->tokenizer.encode(text, true);
  if (text_->adds_eos && !ids.empty() && ids.back() == text_->eos_id) ids.pop_back();
  return ids;
}

void RowTokenizer::close(std::vector<int32_t>& ids, std::vector<std::string>& notes) const {
  if (!text_->eos_id) {
    notes.push_back("has no end token: the tokenizer names none");
  } else if (ids.empty() || ids.back() != *text_->eos_id) {
    ids.push_back(*text_->eos_id);
  }
}

void RowTokenizer::note_special_tokens(std::string_view text,
                                       std::vector<std::string>& notes) const {
  if (const std::optional<ByteRange> hit = finder_->find(text, 0, text.size())) {
    notes.push_back(
        fmt::format("its text holds the special token {}, which the model will read as one",
                    text.substr(hit->begin, hit->end - hit->begin)));
  }
}

TokenizedRow RowTokenizer::tokenize_completion(const NormalRow& row) const {
  TokenizedRow result;
  const std::vector<int32_t> prompt = encode_beginning(row.prompt);
  std::vector<int32_t>& ids = result.example.ids;
  ids = encode_beginning(row.prompt + row.completion);
  const bool begins_alike =
      ids.size() >= prompt.size() && std::equal(prompt.begin(), prompt.end(), ids.begin());
  if (!begins_alike) {
    ids = prompt;
    const std::vector<int32_t> rest = text_->tokenizer.encode(row.completion, false);
    ids.insert(ids.end(), rest.begin(), rest.end());
  }
  // An end token that closes the prompt is not the row's.
  const bool all = train_on_ == TrainOn::kAll;
  if (ids.size() == prompt.size() && text_->eos_id) ids.push_back(*text_->eos_id);
  else close(ids, result.notes);
  result.example.trained = trained_from(all ? 0 : prompt.size(), ids.size());
  note_special_tokens(row.prompt, result.notes);
  note_special_tokens(row.completion, result.notes);
  return result;
}

TokenizedRow RowTokenizer::tokenize_text(const NormalRow& row) const {
  TokenizedRow result;
  result.example.ids = encode_beginning(row.text);
  close(result.example.ids, result.notes);
  result.example.trained = trained_from(0, result.example.ids.size());
  note_special_tokens(row.text, result.notes);
  return result;
}

TokenizedRow RowTokenizer::tokenize_tokens(NormalRow& row) const {
  constexpr int32_t kIgnored = -100;
  TokenizedRow result;
  result.notes = std::move(row.notes);
  result.example.ids = std::move(row.input_ids);
  result.example.trained = trained_from(0, result.example.ids.size());
  if (train_on_ == TrainOn::kAll || row.labels.empty()) return result;
  for (size_t i = 0; i < row.labels.size(); ++i) {
    if (row.labels[i] == kIgnored) result.example.trained[i] = 0;
  }
  return result;
}

}  // namespace graft
