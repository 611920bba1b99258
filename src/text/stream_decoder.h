#pragma once
// Text that grows token by token, never showing half a character.
//
// A byte-level token may hold part of a UTF-8 character, and a SentencePiece decoder treats the
// first token of a text specially; so new tokens are decoded together with a few before them, and
// only what is complete is given out.
//
//   StreamDecoder stream(tokenizer, true);
//   for (int32_t id : ids) std::cout << stream.push(id);
//   std::cout << stream.finish();

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace graft {

class StreamDecoder {
 public:
  StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens);

  std::string push(int32_t id);  // the text that this token completes; may be empty
  std::string finish();          // what is left, with U+FFFD for what stayed incomplete

 private:
  std::string advance(bool final);

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> ids_;  // the tokens still needed as context, and those not yet given out
  size_t shown_ = 0;          // of ids_, how many have been given out
};

}  // namespace graft
