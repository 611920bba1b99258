#pragma once
// Decoding with a key/value cache: the model's own graph, fed a chunk of tokens at a time.
//
// The cache is a pair of variables a layer, as long as a bucket that doubles when it is full. A
// prompt is filled in chunks; then tokens follow one by one.
//
//   Decoder decoder(state, compute);
//   std::span<const float> logits = decoder.feed(prompt_ids);   // of the last token, [vocab]
//   logits = decoder.feed({next});

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ir/executor.h"
#include "train/compute.h"
#include "train/state.h"

namespace graft {

class Decoder {
 public:
  // `state` must outlive the decoder.
  Decoder(const ModelState& state, const Compute& compute);

  // Appends tokens and gives the logits after the last of them; valid until the next call.
  std::span<const float> feed(std::span<const int32_t> ids);
  int64_t length() const { return length_; }
  void truncate(int64_t length);  // forgets the tokens behind the first `length`

 private:
  Program& program(int64_t chunk);
  void grow(int64_t capacity);

  const ModelState& state_;
  DType dtype_;
  int64_t length_ = 0;  // tokens in the cache
  int64_t capacity_ = 0;
  std::unique_ptr<Executor> executor_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Program>> programs_;  // chunk, capacity
  Tensor logits_;
};

}  // namespace graft
