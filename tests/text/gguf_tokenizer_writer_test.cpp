// Tokenizers of Hugging Face folders as GGUF metadata: they read back as the same tokenizer.

#include "text/gguf_tokenizer_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/errors.h"
#include "support/temporary.h"
#include "text/golden.h"

namespace graft::testing {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using ::testing::HasSubstr;

TEST(GgufTokenizerWriter, SmolLM2ReadsBackTheSame) {
  GRAFT_SHARED_OR_SKIP(folder, "real/smollm2_tokenizer");
  const TextModel text = load_text_model(folder);
  const TemporaryFolder out;
  GgufMetadata metadata;
  write_gguf_tokenizer(describe_tokenizer(folder, text, 49152 + 8), metadata);
  GgufWriter writer(out / "t.gguf", metadata, {});
  writer.commit();

  EXPECT_EQ(GgufFile::open(out / "t.gguf").get_string("tokenizer.ggml.pre"), "smollm");
  EXPECT_EQ(GgufFile::open(out / "t.gguf").array_length("tokenizer.ggml.tokens"), 49160U);
  const TextModel again = load_text_model(out / "t.gguf");
  EXPECT_EQ(again.bos_id, text.bos_id);
  EXPECT_EQ(again.eos_id, text.eos_id);
  EXPECT_EQ(again.pad_id, text.pad_id);
  EXPECT_EQ(again.stop_ids, text.stop_ids);
  EXPECT_EQ(again.adds_bos, text.adds_bos);
  ASSERT_TRUE(again.chat_template);
  EXPECT_EQ(again.chat_template->source(), text.chat_template->source());
  const ordered_json golden = read_golden("smollm2");
  for (const ordered_json& string : golden["strings"]) {
    const auto words = string["text"].get<std::string>();
    EXPECT_EQ(again.tokenizer.encode(words, false), text.tokenizer.encode(words, false)) << words;
  }
}

// A SentencePiece tokenizer in the form that transformers writes: merges instead of scores.
json sentence_piece() {
  json vocabulary;
  int id = 0;
  for (const char* token : {"<unk>", "<s>", "</s>"}) vocabulary[token] = id++;
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = id++;
  for (const char* token : {"▁", "a", "b", "c", "ab", "▁a", "abc", "▁ab", "▁abc"}) {
    vocabulary[token] = id++;
  }
  json document = {
      {"version", "1.0"},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "▁"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocabulary},
        {"merges", {"a b", "▁ a", "ab c", "▁a b", "▁ ab", "▁ab c", "▁ abc"}}}}};
  json added = json::array();
  for (int i = 0; i < 3; ++i) {
    const char* content = i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>";
    added.push_back({{"id", i},
                     {"content", content},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
  document["added_tokens"] = added;
  return document;
}

TEST(GgufTokenizerWriter, SentencePieceScoresFollowTheMerges) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "tokenizer.json", sentence_piece().dump());
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})");
  const TextModel text = load_text_model(folder.path());
  const GgufTokenizer d = describe_tokenizer(folder.path(), text, 270);
  EXPECT_EQ(d.model, "llama");
  EXPECT_EQ(d.add_space_prefix, true);
  EXPECT_EQ(d.token_types[0], 2);           // unknown
  EXPECT_EQ(d.token_types[2], 3);           // control
  EXPECT_EQ(d.token_types[10], 6);          // a byte
  EXPECT_EQ(d.token_types[269], 5);         // no token of the tokenizer's
  EXPECT_GT(d.scores[263], d.scores[264]);  // "ab" is merged before "▁a"
  const Tokenizer again = Tokenizer::from_json(tokenizer_json(d), "again");
  for (const char* words : {"abc ab a", "cab abc é", "  b"}) {
    EXPECT_EQ(again.encode(words, false), text.tokenizer.encode(words, false)) << words;
  }
}

TEST(GgufTokenizerWriter, RefusesWhatFilesCannotState) {
  const auto error = [](const json& document, int64_t rows = 270) {
    return error_of([&] { parse_tokenizer_json(document.dump(), "tokenizer.json", rows); });
  };
  EXPECT_EQ(error(sentence_piece()), "");
  EXPECT_THAT(error(sentence_piece(), 100), HasSubstr("has no row in the embedding"));
  json word_piece = sentence_piece();
  word_piece["model"]["type"] = "WordPiece";
  EXPECT_THAT(error(word_piece), HasSubstr("of this kind"));
  json split = sentence_piece();
  split["model"]["byte_fallback"] = false;
  split["normalizer"] = nullptr;
  split["pre_tokenizer"] = {{"type", "Split"},
                            {"pattern", {{"Regex", "x+"}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
  EXPECT_THAT(error(split), HasSubstr("no name in GGUF files"));
}

}  // namespace
}  // namespace graft::testing
