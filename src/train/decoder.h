#pragma once
// Decoding with a key/value cache: the model's own graph, fed a chunk of tokens at a time.
//
// The cache is a pair of variables a layer, as long as a bucket that doubles when it is full. A
// prompt is filled in chunks; then tokens follow one by one.
//
//   Decoder decoder(state, {.dtype = DType::kF32, .threads = 2});
//   std::span<const float> logits = decoder.feed(prompt_ids);   // of the last token, [vocab]
//   logits = decoder.feed({next});

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cpu/executable.h"
#include "train/state.h"

namespace graft {

struct DecoderOptions {
  DType dtype = DType::kF32;
  int threads = 1;
};

class Decoder {
 public:
  // `state` must outlive the decoder.
  Decoder(const ModelState& state, DecoderOptions options);

  // Appends tokens and gives the logits after the last of them; valid until the next call.
  std::span<const float> feed(std::span<const int32_t> ids);
  int64_t length() const { return length_; }
  void truncate(int64_t length);  // forgets the tokens behind the first `length`

 private:
  cpu::Executable& program(int64_t chunk);
  void grow(int64_t capacity);

  const ModelState& state_;
  DecoderOptions options_;
  int64_t length_ = 0;  // tokens in the cache
  int64_t capacity_ = 0;
  std::vector<Tensor> keys_, values_;  // by layer, [1, capacity, heads, head size]
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<cpu::Executable>>
      programs_;  // by chunk, capacity
  cpu::Arena arena_;
  Tensor logits_;
};

}  // namespace graft
