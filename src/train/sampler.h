#pragma once
// Choosing the next token from logits.

#include <cstdint>
#include <span>

#include "base/random.h"

namespace graft {

struct SamplingOptions {
  double temperature = 0;  // 0: the most likely token; ties: the lower id
  double top_p = 1;  // the smallest set of most likely tokens that holds this much probability
  uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  int32_t next(std::span<const float> logits);

 private:
  SamplingOptions options_;
  Philox random_;
};

}  // namespace graft
