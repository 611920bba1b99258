#pragma once
// Tokenizers: text to token ids and back.
//
// A Tokenizer is made from the text of a tokenizer.json (a Hugging Face folder's own file, or one
// that text/gguf_tokenizer.h writes from a GGUF's metadata) and is immutable: copies share one
// table, and any number of threads may use it at once. Truncation and padding that a file asks for
// are switched off.
//
//   Tokenizer tokenizer = Tokenizer::from_file("model/tokenizer.json");
//   std::vector<int32_t> ids = tokenizer.encode("Hello world", false);
//   std::string text = tokenizer.decode(ids, false);

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

struct graft_tokenizer;

namespace graft {

// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

struct Encoding {
  std::vector<int32_t> ids;
  std::vector<ByteRange> offsets;  // of each token in the text; empty for a token that is not in it
};

// A token that is matched in the text before all splitting. Special ones can be left out in
// decoding.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
};

class Tokenizer {
 public:
  // `where` names the source in errors.
  static Tokenizer from_json(std::string_view json, const std::string& where);
  static Tokenizer from_file(const std::filesystem::path& path);

  // `text` must be UTF-8. Special tokens that occur in the text are always recognised;
  // add_special_tokens decides whether the tokenizer also adds its own around it (often a beginning
  // of sequence). A rendered chat template has them already.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const;

  // Ids that have no token are left out. Bytes that are not UTF-8 become U+FFFD; for text that
  // grows token by token see text/stream_decoder.h.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(int32_t id) const;

  int64_t vocabulary_size() const { return vocabulary_size_; }  // with added tokens
  int64_t largest_id() const { return largest_id_; }            // may be larger than size - 1
  const std::vector<AddedToken>& added_tokens() const { return *added_tokens_; }  // by id
  bool is_special(int32_t id) const { return special_ids_->contains(id); }

 private:
  Tokenizer() = default;
  Encoding run_encode(std::string_view text, bool add_special_tokens, bool with_offsets) const;

  std::shared_ptr<const graft_tokenizer> handle_;
  std::string where_;
  int64_t vocabulary_size_ = 0;
  int64_t largest_id_ = -1;
  std::shared_ptr<const std::vector<AddedToken>> added_tokens_;
  std::shared_ptr<const std::unordered_set<int32_t>> special_ids_;
};

}  // namespace graft
