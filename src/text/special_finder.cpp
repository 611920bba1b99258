#include "text/special_finder.h"

#include <algorithm>

namespace graft {

SpecialFinder::SpecialFinder(const Tokenizer& tokenizer) {
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (!token.special || token.content.empty()) continue;
    by_first_byte_[static_cast<unsigned char>(token.content[0])].push_back(token.content);
  }
  for (std::vector<std::string>& tokens : by_first_byte_) {
    std::stable_sort(tokens.begin(), tokens.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
  }
}

std::optional<ByteRange> SpecialFinder::find(std::string_view text, size_t begin,
                                             size_t end) const {
  const std::string_view part = text.substr(0, std::min(end, text.size()));
  for (size_t at = begin; at < part.size(); ++at) {
    for (const std::string& token : by_first_byte_[static_cast<unsigned char>(part[at])]) {
      if (part.substr(at).starts_with(token)) return ByteRange{at, at + token.size()};
    }
  }
  return std::nullopt;
}

}  // namespace graft
