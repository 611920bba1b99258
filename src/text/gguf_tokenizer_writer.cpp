#include "text/gguf_tokenizer_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "formats/json.h"

namespace graft {
namespace {

using nlohmann::json;

constexpr const char* kUseFolder = "export a Hugging Face folder (--format hf) instead";
constexpr int64_t kMostTokens = int64_t{1} << 24;  // far beyond any vocabulary

[[noreturn]] void refuse(const std::string& problem, const std::string& where) {
  throw Error(problem, where, kUseFolder);
}

// A component, or each of those that a Sequence holds in `list`.
std::vector<json> components(const json& object, const char* list) {
  if (!object.is_object()) return {};
  if (object.value("type", json()) != "Sequence") return {object};
  std::vector<json> parts;
  const auto found = object.find(list);
  if (found != object.end() && found->is_array()) parts.assign(found->begin(), found->end());
  return parts;
}

bool is_type(const json& part, const char* type) {
  return part.is_object() && part.value("type", json()) == type;
}

bool flag(const json& part, const char* key, bool fallback) {
  const auto found = part.find(key);
  return found != part.end() && found->is_boolean() ? found->get<bool>() : fallback;
}

const json& member(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) throw Error(fmt::format("has no \"{}\"", key), where);
  return *found;
}

int64_t checked_id(const json& value, int64_t rows, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
    throw Error("a token's id is not a whole number", where);
  }
  const auto id = value.get<int64_t>();
  if (id >= rows) {
    throw Error(fmt::format("token {} has no row in the embedding, which has {}", id, rows), where);
  }
  return id;
}

void read_vocabulary(const json& document, int64_t rows, GgufTokenizer& d) {
  const json& vocabulary = member(member(document, "model", d.where), "vocab", d.where);
  if (!vocabulary.is_object()) throw Error("\"vocab\" is not an object", d.where);
  constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;
  d.tokens.resize(static_cast<size_t>(rows));
  d.token_types.assign(static_cast<size_t>(rows), kUnused);
  for (const auto& [token, id] : vocabulary.items()) {
    const auto place = static_cast<size_t>(checked_id(id, rows, d.where));
    d.tokens[place] = token;
    d.token_types[place] = kNormal;
  }
  const auto added = document.find("added_tokens");
  if (added != document.end() && added->is_array()) {
    for (const json& entry : *added) {
      const json& content = member(entry, "content", d.where);
      if (!content.is_string()) throw Error("an added token has no text", d.where);
      const auto place =
          static_cast<size_t>(checked_id(member(entry, "id", d.where), rows, d.where));
      d.tokens[place] = content.get<std::string>();
      d.token_types[place] = flag(entry, "special", false) ? kControl : kUserDefined;
    }
  }
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    if (d.token_types[id] == kUnused) d.tokens[id] = fmt::format("[PAD{}]", id);
  }
}

// Merges as pairs; files hold them as pairs or as texts with a space between.
std::vector<std::pair<std::string, std::string>> read_merges(const json& model,
                                                             const std::string& where) {
  std::vector<std::pair<std::string, std::string>> merges;
  const json& list = member(model, "merges", where);
  if (!list.is_array()) throw Error("\"merges\" is not a list", where);
  for (const json& merge : list) {
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ', 1);
      if (space == std::string::npos) throw Error("a merge is not a pair of tokens", where);
      merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      throw Error("a merge is not a pair of tokens", where);
    }
  }
  return merges;
}

// The patterns by which a byte-level tokenizer splits, in the form of GGUF's named rules.
std::vector<std::string> split_patterns(const json& document, GgufTokenizer& d) {
  std::vector<std::string> patterns;
  const auto found = document.find("pre_tokenizer");
  const json none;
  for (const json& part : components(found == document.end() ? none : *found, "pretokenizers")) {
    if (is_type(part, "Digits") && flag(part, "individual_digits", false)) {
      patterns.emplace_back(R"(\p{N})");
    } else if (is_type(part, "Split") && part.contains("pattern") && part["pattern"].is_object() &&
               part["pattern"].contains("Regex") && part["pattern"]["Regex"].is_string() &&
               part.value("behavior", json()) == "Isolated" && !flag(part, "invert", false)) {
      patterns.push_back(part["pattern"]["Regex"].get<std::string>());
    } else if (is_type(part, "ByteLevel")) {
      d.add_space_prefix = flag(part, "add_prefix_space", true);
      if (flag(part, "use_regex", true)) patterns.emplace_back(gpt2_split_pattern());
    } else {
      refuse("splits text in a way that GGUF files do not know", d.where);
    }
  }
  return patterns;
}

void read_byte_level(const json& document, GgufTokenizer& d) {
  const json& model = document["model"];
  d.model = "gpt2";
  const auto normalizer = document.find("normalizer");
  bool composes = false;
  if (normalizer != document.end()) {
    for (const json& part : components(*normalizer, "normalizers")) {
      if (!is_type(part, "NFC")) refuse("normalises text in a way GGUF files do not know", d.where);
      composes = true;
    }
  }
  const auto name = find_pre_tokenizer_name(split_patterns(document, d),
                                            flag(model, "ignore_merges", false), composes);
  if (!name) refuse("splits text by a rule that has no name in GGUF files", d.where);
  d.pre = *name;
  for (const auto& [left, right] : read_merges(model, d.where)) {
    d.merges.push_back(left + " " + right);
  }
}

// SentencePiece has a score for each token; the order of the merges is the order of the scores of
// what they make.
void read_sentence_piece(const json& document, GgufTokenizer& d) {
  constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6;
  const json& model = document["model"];
  d.model = "llama";
  d.add_space_prefix = false;
  const json none;
  const auto at = [&](const char* key) -> const json& {
    const auto found = document.find(key);
    return found == document.end() ? none : *found;
  };
  for (const json& part : components(at("normalizer"), "normalizers")) {
    if (is_type(part, "Prepend")) d.add_space_prefix = true;
    else if (!is_type(part, "Replace")) refuse("normalises text in an unknown way", d.where);
  }
  for (const json& part : components(at("pre_tokenizer"), "pretokenizers")) {
    if (!is_type(part, "Metaspace")) refuse("splits text in an unknown way", d.where);
    const auto scheme = part.find("prepend_scheme");
    d.add_space_prefix =
        scheme == part.end() ? flag(part, "add_prefix_space", true) : *scheme != "never";
  }
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < d.tokens.size(); ++id) ids.emplace(d.tokens[id], id);
  d.scores.assign(d.tokens.size(), 0);
  std::vector<bool> scored(d.tokens.size(), false);
  float score = 0;
  for (const auto& [left, right] : read_merges(model, d.where)) {
    const auto found = ids.find(left + right);
    if (found == ids.end()) throw Error("a merge makes no token", d.where);
    if (scored[found->second]) continue;
    scored[found->second] = true;
    d.scores[found->second] = score -= 1;
  }
  // Single characters are never the result of a merge, and are looked up, not compared.
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    const std::string& token = d.tokens[id];
    if (d.token_types[id] == kNormal && !scored[id]) d.scores[id] = score - 1;
    const bool byte = token.size() == 6 && token.starts_with("<0x") && token.ends_with(">");
    if (byte && d.token_types[id] == kNormal) d.token_types[id] = kByte;
  }
  const auto unknown = model.find("unk_token");
  if (unknown != model.end() && unknown->is_string()) {
    const auto found = ids.find(unknown->get_ref<const std::string&>());
    if (found != ids.end() && d.token_types[found->second] == kControl) {
      d.token_types[found->second] = kUnknown;
    }
  }
}

// Texts on which rules of splitting differ: digits, contractions, scripts, runs of spaces, marks.
constexpr std::string_view kProbes[] = {
    "Hello world, it's 1234567 o'clock -- isn't it?",
    "  two  spaces\n\n\tand a tab, \r\n then 3.14159 and $x_1 = {y};",
    "größer \u00e9 e\u0301 \u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f "
    "\u041f\u0440\u0438\u0432\u0435\u0442 \U0001F642",
    "CamelCase HTTPServer don't WE'LL we'll",
};

void check_same_ids(const GgufTokenizer& description, const Tokenizer& original) {
  const Tokenizer again = Tokenizer::from_json(tokenizer_json(description), description.where);
  for (const std::string_view probe : kProbes) {
    if (again.encode(probe, false) == original.encode(probe, false)) continue;
    refuse("its tokenizer gives other ids when it is written as GGUF metadata", description.where);
  }
}

}  // namespace

GgufTokenizer parse_tokenizer_json(std::string_view text, const std::string& name, int64_t rows) {
  GRAFT_CHECK(rows > 0);
  if (rows > kMostTokens) throw Error(fmt::format("{} tokens are not believable", rows), name);
  const json document = parse_json(text, name);
  GgufTokenizer d;
  d.where = name;
  if (!document.is_object()) throw Error("is not an object", name);
  const json& model = member(document, "model", name);
  if (!model.is_object() || model.value("type", json("BPE")) != "BPE" ||
      !model.contains("merges")) {
    refuse("a tokenizer of this kind cannot be written to a GGUF file", name);
  }
  read_vocabulary(document, rows, d);
  if (flag(model, "byte_fallback", false)) read_sentence_piece(document, d);
  else read_byte_level(document, d);
  return d;
}

GgufTokenizer describe_tokenizer(const std::filesystem::path& folder, const TextModel& text,
                                 int64_t rows) {
  const std::filesystem::path file = folder / "tokenizer.json";
  GgufTokenizer d = parse_tokenizer_json(read_text_file(file), file.string(), rows);
  d.bos_id = text.bos_id;
  d.eos_id = text.eos_id;
  d.pad_id = text.pad_id;
  d.unk_id = text.unk_id;
  // Files have room for one more token that ends a turn.
  for (const int32_t id : text.stop_ids) {
    if (id != text.eos_id && !d.eot_id) d.eot_id = id;
  }
  d.add_bos = text.adds_bos;
  d.add_eos = text.adds_eos;
  if (text.chat_template) d.chat_template = text.chat_template->source();
  check_same_ids(d, text.tokenizer);
  return d;
}

void write_gguf_tokenizer(const GgufTokenizer& d, GgufMetadata& metadata) {
  const std::string prefix = "tokenizer.ggml.";
  metadata.set_string(prefix + "model", d.model);
  metadata.set_string(prefix + "pre", d.pre.empty() ? "default" : d.pre);
  metadata.set_strings(prefix + "tokens", d.tokens);
  if (!d.scores.empty()) metadata.set_f32s(prefix + "scores", d.scores);
  if (!d.token_types.empty()) metadata.set_i32s(prefix + "token_type", d.token_types);
  if (!d.merges.empty()) metadata.set_strings(prefix + "merges", d.merges);
  const auto set_id = [&](const char* key, std::optional<int32_t> id) {
    if (id) metadata.set_u32(prefix + key, static_cast<uint32_t>(*id));
  };
  set_id("bos_token_id", d.bos_id);
  set_id("eos_token_id", d.eos_id);
  set_id("eot_token_id", d.eot_id);
  set_id("padding_token_id", d.pad_id);
  set_id("unknown_token_id", d.unk_id);
  const auto set_flag = [&](const char* key, std::optional<bool> value) {
    if (value) metadata.set_bool(prefix + key, *value);
  };
  set_flag("add_bos_token", d.add_bos);
  set_flag("add_eos_token", d.add_eos);
  set_flag("add_space_prefix", d.add_space_prefix);
  if (!d.chat_template.empty()) metadata.set_string("tokenizer.chat_template", d.chat_template);
}

}  // namespace graft
