#pragma once
// A normalised row to tokens and the mask of those that are trained.
//
//   conversation       the chat template renders the whole of it once; the text layer says which
//   tokens
//                      the assistant's turns are (text/assistant_mask.h)
//   prompt, completion the tokens of both together where these begin with the prompt's own tokens,
//   as a
//                      reader of the prompt alone would see them; otherwise the tokens of the two
//                      one after the other. So no token straddles the boundary. An end token closes
//                      the row.
//   text               as the tokenizer begins a text (with its beginning token, if it has one),
//   and an
//                      end token where the text does not end in one
//   tokens             as they are
//
//   const RowTokenizer tokenizer(&text_model, options);
//   TokenizedRow row = tokenizer.tokenize(normalize_row(...), rows.where(line));

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/conversation.h"
#include "data/example.h"
#include "data/options.h"
#include "text/assistant_mask.h"
#include "text/text_model.h"

namespace graft {

struct TokenizedRow {
  TokenizedExample example;        // line is not set
  std::vector<std::string> notes;  // the row's own, and what its rendering tells
};

class RowTokenizer {
 public:
  // `text` may be null where every row is already tokens. options: train_on, template_*.
  RowTokenizer(const TextModel* text, const DataOptions& options);

  // Safe to call from several threads at once. Raises Error at `where`, also where train_on asks
  // for what the row does not have, or the template refuses it.
  TokenizedRow tokenize(NormalRow row, const std::string& where) const;

 private:
  TokenizedRow tokenize_conversation(NormalRow& row, const std::string& where) const;
  TokenizedRow tokenize_completion(const NormalRow& row) const;
  TokenizedRow tokenize_text(const NormalRow& row) const;
  TokenizedRow tokenize_tokens(NormalRow& row) const;
  void exclude_turns(NormalRow& row) const;
  std::string variables_of(const NormalRow& row) const;
  std::vector<int32_t> encode_beginning(std::string_view text) const;
  void close(std::vector<int32_t>& ids, std::vector<std::string>& notes) const;
  void note_special_tokens(std::string_view text, std::vector<std::string>& notes) const;

  const TextModel* text_;
  TrainOn train_on_;
  std::string variables_, date_;
  std::optional<SpecialFinder> finder_;
  std::map<const ChatTemplate*, std::unique_ptr<AssistantMasker>> maskers_;
};

}  // namespace graft
