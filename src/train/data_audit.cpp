#include "train/data_audit.h"

#include <algorithm>
#include <set>

namespace graft {
namespace {

bool is_stop(const TextModel& text, int32_t id) {
  return std::find(text.stop_ids.begin(), text.stop_ids.end(), id) != text.stop_ids.end();
}

// Whether any token of the data, trained or not, ends a generation.
bool writes_stop_tokens(const Dataset& data, const TextModel& text) {
  for (const TokenizedExample& example : *data.examples) {
    for (const int32_t id : example.ids) {
      if (is_stop(text, id)) return true;
    }
  }
  return false;
}

std::string token_name(const TextModel& text, int32_t id) {
  return fmt::format("{} ({})", text.tokenizer.id_to_token(id).value_or("?"), id);
}

void audit_trained_tokens(Audit& audit, const Dataset& data) {
  if (data.trained_tokens == 0) {
    audit.add("trained tokens", AuditStatus::kRefused,
              fmt::format("{}: no token is trained; raise data.max_length, or check data.train_on "
                          "and the data's roles",
                          data.name));
    return;
  }
  audit.add("trained tokens", AuditStatus::kOk,
            fmt::format("{} of {} tokens, in {} of {} rows", data.trained_tokens, data.tokens,
                        data.trained_examples, data.rows));
}

void audit_end_of_turn(Audit& audit, const Dataset& data, const TextModel& text) {
  const std::string name = "end of turn";
  if (data.trained_stop_tokens > 0) {
    audit.add(name, AuditStatus::kOk,
              fmt::format("{} trained tokens end a reply", data.trained_stop_tokens));
    return;
  }
  const bool writes = writes_stop_tokens(data, text);
  const bool ids_given = data.format == DataFormat::kTokenized;
  if (writes && !ids_given) {
    audit.add(
        name, AuditStatus::kRefused,
        "the template ends turns with a token that is never trained, so the model would not "
        "learn to stop; check data.chat_template and its generation marks, or data.max_length "
        "with on_too_long: truncate");
    return;
  }
  audit.add(name, AuditStatus::kWarning,
            writes
                ? "no trained token ends a reply: the model will not learn to stop"
                : "no token of the data is one that ends a generation of this model: it will not "
                  "learn to stop");
}

void audit_padding(Audit& audit, const Dataset& data, const TextModel& text) {
  if (!text.pad_id || !is_stop(text, *text.pad_id)) return;
  audit.add(
      "padding", AuditStatus::kOk,
      fmt::format("the padding token {} also ends a reply; padding is masked by position, never "
                  "by id, and {} end-of-turn tokens are trained",
                  token_name(text, *text.pad_id), data.trained_stop_tokens));
}

void audit_beginning(Audit& audit, const Dataset& data) {
  if (data.doubled_bos_lines.empty()) return;
  audit.add(
      "beginning of sequence", AuditStatus::kRefused,
      fmt::format("{}: {} rows ({}) begin with two beginning-of-sequence tokens; remove it from "
                  "the text or from the chat template",
                  data.name, data.doubled_bos_lines.size(),
                  list_lines(data.doubled_bos_lines, data.unit)));
}

void audit_token_ids(Audit& audit, const Dataset& data, const TokenFacts& facts) {
  if (facts.embedding_rows <= 0) return;
  if (data.largest_id >= facts.embedding_rows) {
    audit.add(
        "token ids", AuditStatus::kRefused,
        fmt::format("{}: {} {} has the token id {}, but the model's embedding has {} rows; is this "
                    "the tokenizer of this model?",
                    data.name, data.unit, data.largest_id_line, data.largest_id,
                    facts.embedding_rows));
    return;
  }
  std::string message = fmt::format("the largest is {}, the embedding has {} rows", data.largest_id,
                                    facts.embedding_rows);
  if (facts.text != nullptr && facts.text->tokenizer.largest_id() >= facts.embedding_rows) {
    message += fmt::format("; the tokenizer has ids up to {}, none of which the data uses",
                           facts.text->tokenizer.largest_id());
  }
  audit.add("token ids", AuditStatus::kOk, message);
}

}  // namespace

AuditExample render_example(const TokenizedExample& example, const TextModel* text) {
  AuditExample rendered{example.line, example.size(), example.trained_count(), ""};
  const std::span<const int32_t> ids(example.ids);
  for (size_t begin = 0; begin < ids.size();) {
    size_t end = begin;
    while (end < ids.size() && example.trained[end] == example.trained[begin]) ++end;
    std::string stretch;
    if (text != nullptr) {
      stretch = text->tokenizer.decode(ids.subspan(begin, end - begin), false);
    } else {
      for (size_t i = begin; i < end; ++i)
        stretch += fmt::format("{}{}", i > begin ? " " : "", ids[i]);
    }
    const bool trained = example.trained[begin] != 0;
    if (trained) rendered.text += kTrainedBegin;
    rendered.text += stretch;
    if (trained) rendered.text += kTrainedEnd;
    if (text == nullptr && end < ids.size()) rendered.text += ' ';
    begin = end;
  }
  return rendered;
}

void audit_data(Audit& audit, const Dataset& train, const TokenFacts& facts) {
  audit.data["rows"] = train.rows;
  audit.data["rows dropped"] = static_cast<int64_t>(train.dropped.size());
  audit.data["rows trained"] = train.trained_examples;
  audit.data["tokens"] = train.tokens;
  audit.data["tokens trained"] = train.trained_tokens;
  audit.data["tokens in the longest row"] = train.longest;
  audit_trained_tokens(audit, train);
  if (facts.text != nullptr) {
    audit_end_of_turn(audit, train, *facts.text);
    audit_padding(audit, train, *facts.text);
  }
  audit_beginning(audit, train);
  audit_token_ids(audit, train, facts);
  for (const std::string& warning : train.warnings) {
    audit.add("data", AuditStatus::kWarning, warning);
  }
  const auto& examples = *train.examples;
  if (examples.empty()) return;
  // A set: a small file has fewer than three.
  for (const size_t i : std::set<size_t>{0, examples.size() / 2, examples.size() - 1}) {
    audit.examples.push_back(render_example(examples[i], facts.text));
  }
}

}  // namespace graft
