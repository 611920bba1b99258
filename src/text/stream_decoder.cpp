#include "text/stream_decoder.h"

#include <span>
#include <string_view>
#include <utility>

namespace graft {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

std::string StreamDecoder::push(int32_t id) {
  ids_.push_back(id);
  return advance(false);
}

std::string StreamDecoder::finish() { return advance(true); }

std::string StreamDecoder::advance(bool final) {
  const std::span<const int32_t> ids(ids_);
  const std::string before = tokenizer_.decode(ids.first(shown_), skip_special_tokens_);
  const std::string now = tokenizer_.decode(ids, skip_special_tokens_);
  // An incomplete character at the end decodes to U+FFFD. One that is meant as such waits for the
  // next token, or for finish().
  if (now.size() <= before.size() || (!final && now.ends_with(kReplacement))) return "";
  std::string fresh = now.substr(before.size());
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(shown_));
  shown_ = ids_.size();
  return fresh;
}

}  // namespace graft
