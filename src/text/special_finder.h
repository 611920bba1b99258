#pragma once
// Finds special tokens in text, by their spelling.
//
//   const SpecialFinder finder(tokenizer);
//   if (auto hit = finder.find(text, 0, text.size())) ... hit->text, hit->range

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace graft {

class SpecialFinder {
 public:
  explicit SpecialFinder(const Tokenizer& tokenizer);

  // The first special token that lies wholly in [begin, end); of several that begin there, the
  // longest.
  std::optional<ByteRange> find(std::string_view text, size_t begin, size_t end) const;

 private:
  std::array<std::vector<std::string>, 256> by_first_byte_;  // longest first
};

}  // namespace graft
