#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/file.h"
#include "support/errors.h"
#include "support/shared.h"
#include "text/special_finder.h"
#include "text/stream_decoder.h"
#include "text/text_model.h"

namespace graft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tokenizer tiny() { return Tokenizer::from_file(test_data("tiny_tokenizer/tokenizer.json")); }

std::vector<std::string> pieces(const std::string& text, bool special) {
  const Tokenizer tokenizer = tiny();
  std::vector<std::string> out;
  for (const int32_t id : tokenizer.encode(text, special)) {
    out.push_back(tokenizer.id_to_token(id).value());
  }
  return out;
}

TEST(Tokenizer, Encodes) {
  EXPECT_THAT(pieces("hello the world", false), ElementsAre("hello", "Ġthe", "Ġworld"));
  EXPECT_THAT(pieces("hello", true), ElementsAre("<|begin|>", "hello"));
  EXPECT_THAT(pieces("hello<|end|> a", false), ElementsAre("hello", "<|end|>", "Ġa"));
  EXPECT_THAT(pieces("", false), ElementsAre());
}

// The file asks for truncation to four tokens; a text must not be cut in silence.
TEST(Tokenizer, IgnoresTruncation) { EXPECT_EQ(tiny().encode("one two three", false).size(), 12u); }

TEST(Tokenizer, OffsetsAreBytes) {
  const std::string text = "é hello<|end|>😀";
  const Encoding encoding = tiny().encode_with_offsets(text, true);
  ASSERT_EQ(encoding.ids.size(), encoding.offsets.size());
  EXPECT_EQ(encoding.offsets[0], (ByteRange{0, 0}));  // begin is not in the text
  size_t covered = 0;
  for (const ByteRange& range : encoding.offsets) {
    EXPECT_LE(range.begin, covered);
    EXPECT_GE(range.end, covered);
    covered = range.end;
  }
  EXPECT_EQ(covered, text.size());
  EXPECT_EQ(encoding.offsets[3], (ByteRange{2, 3}));  // after two bytes of é: the space
  EXPECT_EQ(encoding.offsets[1], (ByteRange{0, 2}));
}

TEST(Tokenizer, LooksUpTokens) {
  const Tokenizer tokenizer = tiny();
  EXPECT_EQ(tokenizer.token_to_id("<|end|>"), 1);
  EXPECT_EQ(tokenizer.token_to_id("nonsense"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(0), "<|begin|>");
  EXPECT_EQ(tokenizer.id_to_token(100000), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(-1), std::nullopt);
  EXPECT_EQ(tokenizer.vocabulary_size(), tokenizer.largest_id() + 1);
  EXPECT_EQ(tokenizer.added_tokens().size(), 3u);
  EXPECT_TRUE(tokenizer.is_special(2));
  EXPECT_FALSE(tokenizer.is_special(3));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(error_of([] { tiny().encode("ab\xFFz", false); }), HasSubstr("UTF-8 (byte 2)"));
}

TEST(Tokenizer, RefusesBrokenFiles) {
  for (
      const char* json :
      {"", "{", "[]", "{}", "null", R"({"model": {"type": "BPE"}})",
       R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})",
       R"({"version":"1.0","added_tokens":[],"model":{"type":"Nonsense"}})",
       R"({"version":"1.0","model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})",
       R"({"version":"1.0","model":{"type":"BPE","vocab":{"a":3000000000},"merges":[]}})"}) {
    EXPECT_THAT(error_of([&] { Tokenizer::from_json(json, "broken.json"); }),
                HasSubstr("broken.json"))
        << json;
  }
}

TEST(Tokenizer, SurvivesDamagedFiles) {
  const std::string good = read_text_file(test_data("tiny_tokenizer/tokenizer.json"));
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string damaged = good;
    for (int i = 0; i < 3; ++i)
      damaged[random() % damaged.size()] = static_cast<char>(random() % 128);
    if (round % 3 == 0) damaged.resize(random() % damaged.size());
    error_of([&] {
      const Tokenizer tokenizer = Tokenizer::from_json(damaged, "damaged.json");
      tokenizer.decode(tokenizer.encode("hello the world 123 é<|end|>", true), false);
    });
  }
}

TEST(Tokenizer, ManyThreadsAtOnce) {
  const Tokenizer tokenizer = tiny();
  const std::vector<int32_t> expected = tokenizer.encode("hello the world", false);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i)
        wrong[t] += tokenizer.encode("hello the world", false) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(StreamDecoder, NeverShowsHalfACharacter) {
  const Tokenizer tokenizer = tiny();
  const std::string text = "hello é 😀 日本 the world";
  StreamDecoder stream(tokenizer, true);
  std::string shown;
  for (const int32_t id : tokenizer.encode(text, false)) {
    const std::string part = stream.push(id);
    EXPECT_EQ(part.find("\xEF\xBF\xBD"), std::string::npos) << part;
    shown += part;
    EXPECT_TRUE(text.starts_with(shown));
  }
  EXPECT_EQ(shown + stream.finish(), text);
}

TEST(StreamDecoder, FinishesWithWhatIsIncomplete) {
  const Tokenizer tokenizer = tiny();
  const std::vector<int32_t> ids = tokenizer.encode("a😀", false);
  StreamDecoder stream(tokenizer, true);
  EXPECT_EQ(stream.push(ids[0]), "a");
  EXPECT_EQ(stream.push(ids[1]), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST(StreamDecoder, LeavesOutSpecialTokens) {
  StreamDecoder stream(tiny(), true);
  EXPECT_EQ(stream.push(0) + stream.push(tiny().encode("hello", false)[0]) + stream.push(1),
            "hello");
}

TEST(SpecialFinder, FindsTheFirst) {
  const SpecialFinder finder(tiny());
  const std::string text = "a <|en <|end|><|begin|>";
  const auto hit = finder.find(text, 0, text.size());
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(*hit, (ByteRange{7, 14}));
  EXPECT_EQ(finder.find(text, 0, 10), std::nullopt);
  EXPECT_EQ(finder.find(text, 8, text.size())->begin, 14u);
}

TEST(TextModel, ReadsAFolder) {
  const TextModel model = load_text_model(test_data("tiny_tokenizer"));
  EXPECT_EQ(model.bos_id, 0);
  EXPECT_EQ(model.eos_id, 1);
  EXPECT_EQ(model.pad_id, 1);
  EXPECT_EQ(model.unk_id, std::nullopt);
  EXPECT_THAT(model.stop_ids, ElementsAre(1, 2));
  EXPECT_TRUE(model.adds_bos);
  EXPECT_FALSE(model.adds_eos);
  EXPECT_EQ(model.special_tokens.at("eos_token"), "<|end|>");
  ASSERT_TRUE(model.chat_template.has_value());
  EXPECT_TRUE(has_tokenizer(test_data("tiny_tokenizer")));
  EXPECT_FALSE(has_tokenizer(test_data(".")));
}

TEST(TextModel, SaysWhatIsMissing) {
  EXPECT_THAT(error_of([] { load_text_model(test_data("no-such-folder")); }),
              HasSubstr("no such file"));
  EXPECT_THAT(error_of([] { load_text_model(test_data(".")); }), HasSubstr("no tokenizer.json"));
}

}  // namespace
}  // namespace graft::testing
