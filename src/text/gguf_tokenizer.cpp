#include "text/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "formats/gguf.h"

namespace graft {
namespace {

using nlohmann::ordered_json;

enum TokenType : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

// How a text is split before merging: patterns applied one after the other, each isolating what it
// matches. The patterns are those of the models' own tokenizer.json files.
struct PreTokenizer {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;
  bool whole_words_first = false;  // a word that is a token is taken without merging
  bool adds_bos = false;           // where the metadata does not say
  bool composes = false;           // Unicode NFC comes first
};

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigitTriples =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSingleDigits =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCases =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::vector<PreTokenizer> kTable = {
      {.names = {"gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "jina-es", "jina-de",
                 "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe", "exaone4",
                 "gigachat", "a.x-4.0", "trillion", "granite-docling"},
       .patterns = {kGpt2}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       .patterns = {R"(\p{N})", kGpt2}},
      {.names = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"},
       .patterns = {kDigitTriples},
       .whole_words_first = true,
       .adds_bos = true},
      {.names = {"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, .patterns = {kDigitTriples}},
      {.names = {"qwen2"}, .patterns = {kSingleDigits}, .composes = true},
      {.names = {"deepseek-r1-qwen", "megrez", "stablelm2", "kormo"}, .patterns = {kSingleDigits}},
      {.names = {"gpt-4o", "llama4"}, .patterns = {kCases}, .whole_words_first = true},
      {.names = {"tekken"}, .patterns = {kTekken}, .whole_words_first = true, .adds_bos = true},
      {.names = {"deepseek-v3"},
       .patterns = {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepSeekWords}},
      {.names = {"deepseek-coder"},
       .patterns = {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+",
                    R"(\p{N})"}},
      {.names = {"falcon"}, .patterns = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"}},
      {.names = {"default"},
       .patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
  return kTable;
}

const PreTokenizer& find_pre_tokenizer(const GgufTokenizer& description) {
  std::string known;
  for (const PreTokenizer& candidate : pre_tokenizers()) {
    for (const std::string_view name : candidate.names) {
      if (name == description.pre) return candidate;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
    }
  }
  if (description.pre.empty()) {
    throw Error("the file does not say how its tokenizer splits text (tokenizer.ggml.pre)",
                description.where,
                "convert the model again with a newer converter, or give a folder "
                "with tokenizer.json");
  }
  throw Error(fmt::format("tokenizer.ggml.pre \"{}\" is not supported", description.pre),
              description.where, "known ones: " + known);
}

bool is_sentence_piece(const GgufTokenizer& description) {
  return description.model == "llama" || description.model == "gemma" ||
         description.model == "gemma2" || description.model == "gemma3";
}

int32_t type_of(const GgufTokenizer& d, size_t id) {
  return d.token_types.empty() ? int32_t{kNormal} : d.token_types[id];
}

void check_tables(const GgufTokenizer& d) {
  if (d.tokens.empty()) throw Error("the tokenizer has no tokens", d.where);
  if (d.tokens.size() > static_cast<size_t>(INT32_MAX)) throw Error("too many tokens", d.where);
  const auto check_size = [&](size_t size, std::string_view what) {
    if (size == 0 || size == d.tokens.size()) return;
    throw Error(fmt::format("the tokenizer has {} tokens but {} {}", d.tokens.size(), size, what),
                d.where, "the file is damaged");
  };
  check_size(d.token_types.size(), "token types");
  check_size(d.scores.size(), "scores");
  const std::array<std::pair<std::string_view, std::optional<int32_t>>, 5> ids = {
      {{"bos", d.bos_id},
       {"eos", d.eos_id},
       {"eot", d.eot_id},
       {"padding", d.pad_id},
       {"unknown", d.unk_id}}};
  for (const auto& [name, id] : ids) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= d.tokens.size())) {
      throw Error(
          fmt::format("the {} token's id {} is outside the {} tokens", name, *id, d.tokens.size()),
          d.where, "the file is damaged");
    }
  }
}

ordered_json added_tokens(const GgufTokenizer& d) {
  ordered_json added = ordered_json::array();
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    const int32_t type = type_of(d, id);
    const bool special = type == kControl || (is_sentence_piece(d) && type == kUnknown);
    if (!special && type != kUserDefined) continue;
    if (d.tokens[id].empty()) continue;
    added.push_back({{"id", id},
                     {"content", d.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  return added;
}

ordered_json vocabulary(const GgufTokenizer& d) {
  ordered_json::object_t vocabulary;
  // The object keeps its entries in a list and looks for a key from the front, which takes too long
  // for a whole vocabulary: the keys are made distinct here and appended.
  std::unordered_map<std::string_view, size_t> last;
  for (size_t id = 0; id < d.tokens.size(); ++id) last[d.tokens[id]] = id;
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    if (last[d.tokens[id]] != id) continue;
    vocabulary.Container::emplace_back(d.tokens[id], ordered_json(id));
  }
  return vocabulary;
}

ordered_json post_processor(const GgufTokenizer& d) {
  ordered_json single = ordered_json::array();
  ordered_json special = ordered_json::object();
  const auto add = [&](std::optional<int32_t> id) {
    const std::string& token = d.tokens[static_cast<size_t>(*id)];
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    special[token] = {{"id", token},
                      {"ids", ordered_json::array({*id})},
                      {"tokens", ordered_json::array({token})}};
  };
  const bool bos = adds_bos(d) && d.bos_id;
  const bool eos = d.add_eos.value_or(false) && d.eos_id;
  if (!bos && !eos) return nullptr;
  if (bos) add(d.bos_id);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (eos) add(d.eos_id);
  ordered_json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special}};
}

ordered_json assemble(const GgufTokenizer& d, ordered_json normalizer, ordered_json pre_tokenizer,
                      ordered_json decoder, ordered_json model) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens(d)},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", post_processor(d)},
          {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

ordered_json byte_level_bpe(const GgufTokenizer& d) {
  const PreTokenizer& pre = find_pre_tokenizer(d);
  ordered_json steps = ordered_json::array();
  for (const std::string_view pattern : pre.patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  const ordered_json byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", d.add_space_prefix.value_or(false)},
                                   {"trim_offsets", false},
                                   {"use_regex", false}};
  steps.push_back(byte_level);

  if (d.merges.empty()) throw Error("the tokenizer has no merges (tokenizer.ggml.merges)", d.where);
  ordered_json merges = ordered_json::array();
  for (size_t i = 0; i < d.merges.size(); ++i) {
    const std::string& merge = d.merges[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) {
      throw Error(fmt::format("merge {} is not a pair of tokens: \"{}\"", i, merge), d.where);
    }
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  const ordered_json normalizer =
      pre.composes ? ordered_json{{"type", "NFC"}} : ordered_json(nullptr);
  return assemble(d, normalizer, {{"type", "Sequence"}, {"pretokenizers", steps}}, byte_level,
                  {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", pre.whole_words_first},
                   {"vocab", vocabulary(d)},
                   {"merges", merges}});
}

// SentencePiece joins the two neighbours whose union has the highest score. The same rule as
// merges: every way to split a token into two tokens, ordered by the token's score.
ordered_json merges_from_scores(const GgufTokenizer& d) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    if (type_of(d, id) == kNormal) ids.emplace(d.tokens[id], id);
  }
  struct Merge {
    size_t whole, left, right;
  };
  std::vector<Merge> merges;
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    if (type_of(d, id) != kNormal) continue;
    if (!std::isfinite(d.scores[id])) {
      throw Error(fmt::format("the score of token {} is not a number", id), d.where);
    }
    const std::string_view token = d.tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if ((static_cast<unsigned char>(token[cut]) & 0xC0) == 0x80) continue;  // inside a character
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right != ids.end()) merges.push_back({id, left->second, right->second});
    }
  }
  std::sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
    if (d.scores[a.whole] != d.scores[b.whole]) return d.scores[a.whole] > d.scores[b.whole];
    return std::tie(a.whole, a.left, a.right) < std::tie(b.whole, b.left, b.right);
  });
  ordered_json out = ordered_json::array();
  for (const Merge& merge : merges) out.push_back({d.tokens[merge.left], d.tokens[merge.right]});
  return out;
}

ordered_json sentence_piece_bpe(const GgufTokenizer& d) {
  if (d.scores.empty()) throw Error("the tokenizer has no scores (tokenizer.ggml.scores)", d.where);
  const bool prefix = d.add_space_prefix.value_or(true);
  const auto replace = [](const char* from, const char* to) {
    return ordered_json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  ordered_json normalizers = ordered_json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "▁"}});
  normalizers.push_back(replace(" ", "▁"));
  ordered_json decoders =
      ordered_json::array({replace("▁", " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  const ordered_json unknown =
      d.unk_id ? ordered_json(d.tokens[static_cast<size_t>(*d.unk_id)]) : ordered_json(nullptr);
  return assemble(d, {{"type", "Sequence"}, {"normalizers", normalizers}}, nullptr,
                  {{"type", "Sequence"}, {"decoders", decoders}},
                  {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", unknown},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", true},
                   {"byte_fallback", true},
                   {"ignore_merges", false},
                   {"vocab", vocabulary(d)},
                   {"merges", merges_from_scores(d)}});
}

std::optional<int32_t> find_id(const GgufFile& file, std::string_view key) {
  const std::optional<int64_t> value = file.find_i64(key);
  if (!value || *value == UINT32_MAX)
    return std::nullopt;  // some writers mean "none" by all bits set
  if (*value < 0 || *value > INT32_MAX) {
    throw Error(fmt::format("{} is {}, which is no token id", key, *value), file.name());
  }
  return static_cast<int32_t>(*value);
}

}  // namespace

GgufTokenizer read_gguf_tokenizer(const GgufFile& file) {
  GgufTokenizer d;
  d.where = file.name();
  d.model = file.get_string("tokenizer.ggml.model");
  d.pre = file.find_string("tokenizer.ggml.pre").value_or("");
  d.tokens = file.get_strings("tokenizer.ggml.tokens");
  d.token_types = file.find_i32s("tokenizer.ggml.token_type").value_or(std::vector<int32_t>());
  d.scores = file.find_f32s("tokenizer.ggml.scores").value_or(std::vector<float>());
  d.merges = file.find_strings("tokenizer.ggml.merges").value_or(std::vector<std::string>());
  d.bos_id = find_id(file, "tokenizer.ggml.bos_token_id");
  d.eos_id = find_id(file, "tokenizer.ggml.eos_token_id");
  d.eot_id = find_id(file, "tokenizer.ggml.eot_token_id");
  d.pad_id = find_id(file, "tokenizer.ggml.padding_token_id");
  d.unk_id = find_id(file, "tokenizer.ggml.unknown_token_id");
  d.add_bos = file.find_bool("tokenizer.ggml.add_bos_token");
  d.add_eos = file.find_bool("tokenizer.ggml.add_eos_token");
  d.add_space_prefix = file.find_bool("tokenizer.ggml.add_space_prefix");
  d.chat_template = file.find_string("tokenizer.chat_template").value_or("");
  return d;
}

std::optional<std::string> find_pre_tokenizer_name(const std::vector<std::string>& patterns,
                                                   bool whole_words_first, bool composes) {
  for (const PreTokenizer& candidate : pre_tokenizers()) {
    if (candidate.whole_words_first == whole_words_first && candidate.composes == composes &&
        std::equal(candidate.patterns.begin(), candidate.patterns.end(), patterns.begin(),
                   patterns.end())) {
      return std::string(candidate.names.front());
    }
  }
  return std::nullopt;
}

std::string_view gpt2_split_pattern() { return kGpt2; }

bool adds_bos(const GgufTokenizer& description) {
  if (description.add_bos) return *description.add_bos;
  return is_sentence_piece(description) || find_pre_tokenizer(description).adds_bos;
}

std::string tokenizer_json(const GgufTokenizer& description) {
  check_tables(description);
  ordered_json json;
  if (description.model == "gpt2") {
    json = byte_level_bpe(description);
  } else if (is_sentence_piece(description)) {
    json = sentence_piece_bpe(description);
  } else {
    throw Error(fmt::format("tokenizer.ggml.model \"{}\" is not supported", description.model),
                description.where, "known ones: gpt2, llama, gemma");
  }
  try {
    return json.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error("a token is not valid UTF-8", description.where, "the file is damaged");
  }
}

}  // namespace graft
