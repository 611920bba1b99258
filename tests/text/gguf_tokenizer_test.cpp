// Tokenizers from GGUF metadata: each must do what the model's own tokenizer.json does.

#include "text/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "formats/gguf.h"
#include "support/errors.h"
#include "support/models.h"
#include "text/golden.h"

namespace graft::testing {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

// What a converter would write into a GGUF for this tokenizer.json.
GgufTokenizer as_gguf(const std::filesystem::path& tokenizer_json, const std::string& pre) {
  std::ifstream file(tokenizer_json);
  const nlohmann::json json = nlohmann::json::parse(file);
  GgufTokenizer d;
  d.model = "gpt2";
  d.pre = pre;
  d.where = "test.gguf";
  d.add_bos = false;
  const auto set = [&](size_t id, const std::string& token, int32_t type) {
    if (id >= d.tokens.size()) {
      d.tokens.resize(id + 1);
      d.token_types.resize(id + 1, 5);
    }
    d.tokens[id] = token;
    d.token_types[id] = type;
  };
  for (const auto& [token, id] : json["model"]["vocab"].items()) set(id, token, 1);
  for (const auto& added : json["added_tokens"]) {
    set(added["id"], added["content"], added["special"] == true ? 3 : 4);
  }
  for (const auto& merge : json["model"]["merges"]) {
    d.merges.push_back(merge.is_string()
                           ? merge.get<std::string>()
                           : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return d;
}

void expect_strings(const Tokenizer& tokenizer, const std::string& family) {
  const ordered_json golden = read_golden(family);
  ASSERT_GE(golden["strings"].size(), 33u);
  for (const ordered_json& string : golden["strings"]) {
    const auto ids = string["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(string["text"].get<std::string>(), false), ids) << string["text"];
    EXPECT_EQ(tokenizer.decode(ids, false), string["decoded"].get<std::string>());
  }
}

struct PreCase {
  std::string family, folder, pre;
};

class GgufPre : public ::testing::TestWithParam<PreCase> {};

TEST_P(GgufPre, SplitsAsTheModelsOwnFile) {
  GRAFT_SHARED_OR_SKIP(path, GetParam().folder + "/tokenizer.json");
  GRAFT_SHARED_OR_SKIP(golden, "real/templates/" + GetParam().family + ".json");
  const std::string json = tokenizer_json(as_gguf(path, GetParam().pre));
  expect_strings(Tokenizer::from_json(json, "test.gguf"), GetParam().family);
}

INSTANTIATE_TEST_SUITE_P(Real, GgufPre,
                         ::testing::Values(PreCase{"smollm2", "real/smollm2_tokenizer", "smollm"},
                                           PreCase{"qwen3", "tokenizers/qwen3", "qwen2"},
                                           PreCase{"llama3", "tokenizers/llama3", "llama-bpe"},
                                           PreCase{"deepseek_v3", "tokenizers/deepseek_v3",
                                                   "deepseek-v3"},
                                           PreCase{"gptoss", "tokenizers/gptoss", "gpt-4o"}),
                         [](const auto& info) { return info.param.family; });

TEST(GgufTokenizer, OtherPreGivesOtherIds) {
  GRAFT_SHARED_OR_SKIP(path, "real/smollm2_tokenizer/tokenizer.json");
  const Tokenizer tokenizer =
      Tokenizer::from_json(tokenizer_json(as_gguf(path, "gpt-2")), "test.gguf");
  size_t different = 0;
  const ordered_json golden = read_golden("smollm2");
  for (const ordered_json& string : golden["strings"]) {
    const bool differs = string.contains("ids_if_the_pre_tokenizer_is_ignored");
    const char* key = differs ? "ids_if_the_pre_tokenizer_is_ignored" : "ids";
    different += differs;
    EXPECT_EQ(tokenizer.encode(string["text"].get<std::string>(), false),
              string[key].get<std::vector<int32_t>>());
  }
  EXPECT_GE(different, 3u);
}

TEST(GgufTokenizer, SmolLM2FromItsFile) {
  GRAFT_MODEL_OR_SKIP(path, "GRAFT_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf");
  GRAFT_SHARED_OR_SKIP(folder, "real/smollm2_tokenizer");
  const TextModel from_file = load_text_model(path);
  const TextModel from_folder = load_text_model(folder);
  expect_strings(from_file.tokenizer, "smollm2");
  EXPECT_EQ(from_file.bos_id, 1);
  EXPECT_EQ(from_file.eos_id, 2);
  EXPECT_EQ(from_file.pad_id, 2);
  EXPECT_EQ(from_file.adds_bos, false);
  EXPECT_EQ(from_file.tokenizer.vocabulary_size(), 49152);
  EXPECT_EQ(from_file.tokenizer.added_tokens().size(), from_folder.tokenizer.added_tokens().size());
  EXPECT_EQ(from_file.chat_template->source(), from_folder.chat_template->source());
}

// A SentencePiece model small enough to follow by hand.
GgufTokenizer small_sentence_piece() {
  GgufTokenizer d;
  d.model = "llama";
  d.where = "test.gguf";
  const auto add = [&](const std::string& token, int32_t type, float score) {
    d.tokens.push_back(token);
    d.token_types.push_back(type);
    d.scores.push_back(score);
  };
  add("<unk>", 2, 0);
  add("<s>", 3, 0);
  add("</s>", 3, 0);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 6, 0);
  for (const char* piece : {"▁", "a", "b", "c"}) add(piece, 1, -100);
  add("ab", 1, -2);
  add("bc", 1, -1);  // better than "ab": "abc" is a + bc
  add("▁a", 1, -3);
  add("▁abc", 1, -9);  // from ▁a and bc
  d.bos_id = 1;
  d.eos_id = 2;
  d.unk_id = 0;
  return d;
}

std::vector<std::string> pieces(const Tokenizer& tokenizer, const std::string& text, bool special) {
  std::vector<std::string> out;
  for (const int32_t id : tokenizer.encode(text, special)) {
    out.push_back(tokenizer.id_to_token(id).value());
  }
  return out;
}

TEST(GgufTokenizer, SentencePieceMergesByScore) {
  const GgufTokenizer d = small_sentence_piece();
  const Tokenizer tokenizer = Tokenizer::from_json(tokenizer_json(d), d.where);
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces(tokenizer, "abc", true), (Pieces{"<s>", "▁abc"}));
  EXPECT_EQ(pieces(tokenizer, "cabc", false), (Pieces{"▁", "c", "a", "bc"}));
  EXPECT_EQ(pieces(tokenizer, "abb", false), (Pieces{"▁", "ab", "b"}));
  EXPECT_EQ(pieces(tokenizer, "é", false), (Pieces{"▁", "<0xC3>", "<0xA9>"}));
  EXPECT_EQ(pieces(tokenizer, "a</s>a", false), (Pieces{"▁a", "</s>", "▁a"}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("abc é cab", false), true), "abc é cab");
}

TEST(GgufTokenizer, RefusesWhatItDoesNotKnow) {
  GgufTokenizer d = small_sentence_piece();
  d.model = "bert";
  EXPECT_THAT(error_of([&] { tokenizer_json(d); }), HasSubstr("\"bert\" is not supported"));
  d.model = "gpt2";
  d.pre = "no-such-rule";
  EXPECT_THAT(error_of([&] { tokenizer_json(d); }), HasSubstr("\"no-such-rule\" is not supported"));
  d.pre = "";
  EXPECT_THAT(error_of([&] { tokenizer_json(d); }), HasSubstr("does not say"));
}

TEST(GgufTokenizer, RefusesTablesThatDoNotFit) {
  GgufTokenizer d = small_sentence_piece();
  d.scores.pop_back();
  EXPECT_THAT(error_of([&] { tokenizer_json(d); }), HasSubstr("scores"));
  d = small_sentence_piece();
  d.eos_id = 100000;
  EXPECT_THAT(error_of([&] { tokenizer_json(d); }), HasSubstr("outside"));
  d = small_sentence_piece();
  d.tokens[5] = "\xFF";
  EXPECT_THAT(error_of([&] { tokenizer_json(d); }), HasSubstr("UTF-8"));
  d = small_sentence_piece();
  d.model = "gpt2";
  d.pre = "gpt-2";
  d.merges = {"nospace"};
  EXPECT_THAT(error_of([&] { tokenizer_json(d); }), HasSubstr("merge 0"));
  d.merges = {"a z"};  // parts that are no tokens
  EXPECT_THAT(error_of([&] { Tokenizer::from_json(tokenizer_json(d), d.where); }),
              HasSubstr("test.gguf"));
}

}  // namespace
}  // namespace graft::testing
