#pragma once
// One row as the model sees it: tokens, and which of them are trained.

#include <cstdint>
#include <vector>

namespace graft {

struct TokenizedExample {
  int64_t line = 0;  // where its row begins, see data/source.h
  std::vector<int32_t> ids;
  // 1 where the token is a target: the position before it learns to predict it. The first token of
  // a row has no position before it and is never one.
  std::vector<uint8_t> trained;

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  int64_t trained_count() const {
    int64_t count = 0;
    for (const uint8_t one : trained) count += one;
    return count;
  }
};

}  // namespace graft
