#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "text/rust_api.h"
#include "text/rust_call.h"

namespace graft {

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& where) {
  RustBytes error;
  graft_tokenizer* handle = nullptr;
  if (graft_tokenizer_create(json.data(), json.size(), &handle, error.get()) != 0) {
    throw Error("not a usable tokenizer: " + std::string(error.view()), where,
                "take tokenizer.json from the model's own folder");
  }
  Tokenizer tokenizer;
  tokenizer.handle_ = std::shared_ptr<const graft_tokenizer>(handle, [](const graft_tokenizer* t) {
    graft_tokenizer_free(const_cast<graft_tokenizer*>(t));
  });
  tokenizer.where_ = where;

  RustBytes description;
  rust_call(graft_tokenizer_describe(handle, description.get(), error.get()), error, where);
  const nlohmann::json described = nlohmann::json::parse(description.view());
  tokenizer.vocabulary_size_ = described.at("vocabulary_size").get<int64_t>();
  tokenizer.largest_id_ = described.at("largest_id").get<int64_t>();
  auto added = std::make_shared<std::vector<AddedToken>>();
  auto special = std::make_shared<std::unordered_set<int32_t>>();
  for (const nlohmann::json& token : described.at("added")) {
    added->push_back({token.at("id").get<int32_t>(), token.at("content").get<std::string>(),
                      token.at("special").get<bool>()});
    if (added->back().special) special->insert(added->back().id);
  }
  tokenizer.added_tokens_ = std::move(added);
  tokenizer.special_ids_ = std::move(special);
  return tokenizer;
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  const std::span<const std::byte> bytes = file->bytes();
  return from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

Encoding Tokenizer::run_encode(std::string_view text, bool add_special_tokens,
                               bool with_offsets) const {
  RustBytes error;
  graft_encoding raw{};
  rust_call(graft_tokenizer_encode(handle_.get(), text.data(), text.size(), add_special_tokens,
                                   with_offsets, &raw, error.get()),
            error, where_);
  const std::unique_ptr<graft_encoding, void (*)(graft_encoding*)> owner(
      &raw, [](graft_encoding* e) { graft_encoding_free(*e); });
  Encoding encoding;
  encoding.ids.assign(raw.ids, raw.ids + raw.size);
  if (with_offsets) {
    encoding.offsets.reserve(raw.size);
    for (size_t i = 0; i < raw.size; ++i) {
      encoding.offsets.push_back({raw.offsets[2 * i], raw.offsets[2 * i + 1]});
    }
  }
  return encoding;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return run_encode(text, add_special_tokens, false).ids;
}

Encoding Tokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  return run_encode(text, add_special_tokens, true);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  RustBytes error, out;
  rust_call(graft_tokenizer_decode(handle_.get(), ids.data(), ids.size(), skip_special_tokens,
                                   out.get(), error.get()),
            error, where_);
  return std::string(out.view());
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  RustBytes error;
  int32_t id = -1;
  rust_call(
      graft_tokenizer_token_to_id(handle_.get(), token.data(), token.size(), &id, error.get()),
      error, where_);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  RustBytes error, out;
  bool found = false;
  rust_call(graft_tokenizer_id_to_token(handle_.get(), id, out.get(), &found, error.get()), error,
            where_);
  return found ? std::optional(std::string(out.view())) : std::nullopt;
}

}  // namespace graft
