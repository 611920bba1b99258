#include "formats/sha256.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "support/temporary.h"

namespace graft {
namespace {

std::string hash(const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); }

// FIPS 180-4's examples, and lengths about the edges of the padding, from Python's hashlib.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(hash(std::string(55, 'a')),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(hash(std::string(56, 'a')),
            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(hash(std::string(63, 'a')),
            "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  EXPECT_EQ(hash(std::string(64, 'a')),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

TEST(Sha256, PiecesGiveTheSame) {
  std::string text(1000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  for (const size_t piece : {1u, 3u, 63u, 64u, 65u, 130u}) {
    Sha256 sum;
    for (size_t i = 0; i < text.size(); i += piece) {
      sum.update(std::as_bytes(std::span(text)).subspan(i, std::min(piece, text.size() - i)));
      sum.hex();  // looking must not disturb
    }
    EXPECT_EQ(sum.hex(), hash(text)) << piece;
  }
}

TEST(Sha256, InstructionsAndPlainCodeAgree) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += static_cast<char>(i * i);
    Sha256 plain = Sha256::without_instructions();
    plain.update(std::as_bytes(std::span(text)));
    ASSERT_EQ(plain.hex(), hash(text)) << i;
  }
}

TEST(Sha256, File) {
  testing::TemporaryFolder folder;
  write_file_atomically(folder / "abc", "abc");
  EXPECT_EQ(sha256_file(folder / "abc"), hash("abc"));
}

}  // namespace
}  // namespace graft
