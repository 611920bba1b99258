#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "formats/sha256.h"
#include "support/errors.h"
#include "support/gguf_builder.h"
#include "support/models.h"
#include "support/shared.h"

namespace graft {
namespace {

using ::testing::AllOf;
using testing::as_bytes;
using ::testing::ElementsAre;
using testing::error_of;
using testing::gguf_string;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::raw;

GgufFile open(const std::string& bytes) { return GgufFile::open(as_bytes(bytes), "test.gguf"); }

std::string open_error(const std::string& bytes) {
  return error_of([&] { open(bytes); });
}

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

GgufBuilder good() {
  GgufBuilder builder;
  builder.string("general.architecture", "llama")
      .u32("llama.block_count", 30)
      .f32("llama.rope.freq_base", 100000.0f)
      .boolean("add_bos", true)
      .value("small", GgufKind::kI8, raw(int8_t{-3}))
      .value("large", GgufKind::kU64, raw(UINT64_MAX))
      .value("precise", GgufKind::kF64, raw(0.1))
      .strings("tokens", {"a", "", "\xc4\xa0t"})
      .array("types", GgufKind::kI32, 3, raw(int32_t{1}) + raw(int32_t{-2}) + raw(int32_t{3}))
      .array("scores", GgufKind::kF32, 2, raw(0.5f) + raw(-1.0f))
      .array("flags", GgufKind::kBool, 2, std::string("\1\0", 2))
      .array("nested", GgufKind::kArray, 1,
             raw(uint32_t{8}) + raw(uint64_t{2}) + gguf_string("x") + gguf_string("y"));
  builder.tensor("matrix", GgmlType::kF32, {3, 2}, floats({1, 2, 3, 4, 5, 6}));
  builder.tensor("empty", GgmlType::kF32, {0}, "");
  builder.tensor("vector", GgmlType::kF16, {2}, std::string("\x00\x3c\x00\xc0", 4));
  return builder;
}

TEST(Gguf, Metadata) {
  const std::string bytes = good().build();
  const GgufFile file = open(bytes);
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_u32("llama.block_count"), 30u);
  EXPECT_EQ(file.get_i64("llama.block_count"), 30);
  EXPECT_EQ(file.get_f32("llama.rope.freq_base"), 100000.0f);
  EXPECT_EQ(file.get_f32("precise"), 0.1f);
  EXPECT_TRUE(file.get_bool("add_bos"));
  EXPECT_EQ(file.get_i64("small"), -3);
  EXPECT_THAT(file.get_strings("tokens"), ElementsAre("a", "", "\xc4\xa0t"));
  EXPECT_THAT(file.get_i32s("types"), ElementsAre(1, -2, 3));
  EXPECT_THAT(file.get_f32s("scores"), ElementsAre(0.5f, -1.0f));
  EXPECT_THAT(*file.find_bools("flags"), ElementsAre(true, false));
  EXPECT_EQ(file.kind("tokens"), GgufKind::kArray);
  EXPECT_EQ(file.array_length("tokens"), 3u);
  EXPECT_EQ(file.array_length("small"), 0u);
  EXPECT_EQ(file.describe("tokens"), "3 of string");
  EXPECT_EQ(file.describe("large"), "18446744073709551615");
  EXPECT_EQ(file.describe("small"), "-3");
  EXPECT_EQ(file.keys().size(), 12u);
  EXPECT_EQ(file.find_u32("absent"), std::nullopt);
  EXPECT_FALSE(file.has("absent"));
}

TEST(Gguf, MetadataOfAnotherKind) {
  const std::string bytes = good().build();
  const GgufFile file = open(bytes);
  EXPECT_THAT(error_of([&] { file.get_u32("absent"); }),
              AllOf(HasSubstr("test.gguf"), HasSubstr("\"absent\"")));
  EXPECT_THAT(error_of([&] { file.get_u32("small"); }),
              AllOf(HasSubstr("\"small\""), HasSubstr("i8")));  // negative
  EXPECT_NE(error_of([&] { file.get_i64("large"); }), "");      // does not fit
  EXPECT_NE(error_of([&] { file.get_string("small"); }), "");
  EXPECT_NE(error_of([&] { file.get_bool("llama.block_count"); }), "");
  EXPECT_NE(error_of([&] { file.get_f32("llama.block_count"); }), "");
  EXPECT_NE(error_of([&] { file.get_u32("types"); }), "");
  EXPECT_NE(error_of([&] { file.get_strings("types"); }), "");
  EXPECT_NE(error_of([&] { file.get_strings("nested"); }), "");
  EXPECT_NE(error_of([&] { file.get_i32s("tokens"); }), "");
  EXPECT_NE(error_of([&] { file.get_i32s("small"); }), "");
}

TEST(Gguf, Tensors) {
  const std::string bytes = good().build();
  const GgufFile file = open(bytes);
  ASSERT_EQ(file.tensors().size(), 3u);
  const GgufTensor& matrix = file.tensor("matrix");
  EXPECT_EQ(matrix.shape, (Shape{2, 3}));
  EXPECT_EQ(matrix.rows(), 2);
  EXPECT_EQ(matrix.columns(), 3);
  const Tensor values = file.dequantize(matrix);
  EXPECT_EQ(values.shape(), (Shape{2, 3}));
  EXPECT_THAT(values.span<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
  float row[3];
  file.dequantize_rows(matrix, 1, 2, row);
  EXPECT_THAT(row, ElementsAre(4, 5, 6));
  EXPECT_THAT(file.dequantize("vector").span<float>(), ElementsAre(1, -2));
  EXPECT_EQ(file.dequantize("empty").elements(), 0);
  EXPECT_EQ(file.blocks(matrix).shape(), (Shape{2, 12}));
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_THAT(error_of([&] { file.tensor("none"); }), HasSubstr("\"none\""));
}

TEST(Gguf, TruncatedAnywhere) {
  const std::string bytes = good().build();
  EXPECT_EQ(open_error(bytes), "");
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(open_error(bytes.substr(0, length)), "") << length;
  }
}

// No single wrong byte may do more than raise an Error.
TEST(Gguf, AnyByteWrong) {
  const std::string bytes = good().build();
  for (size_t place = 0; place < bytes.size(); ++place) {
    for (const int bit : {0, 6, 7}) {
      std::string damaged = bytes;
      damaged[place] = static_cast<char>(damaged[place] ^ (1 << bit));
      error_of([&] {
        const GgufFile file = open(damaged);
        for (const std::string& key : file.keys()) file.describe(key);
        for (const GgufTensor& tensor : file.tensors()) file.dequantize(tensor);
      });
    }
  }
}

TEST(Gguf, WrongStart) {
  EXPECT_THAT(open_error("GGML" + std::string(100, '\0')), HasSubstr("is no GGUF file"));
  GgufBuilder builder = good();
  builder.version = 1;
  EXPECT_THAT(open_error(builder.build()), HasSubstr("version 1"));
  builder.version = 0x03000000;
  EXPECT_THAT(open_error(builder.build()), HasSubstr("big-endian"));
  builder.version = 2;
  EXPECT_EQ(open_error(builder.build()), "");
  const std::string counts = "GGUF" + raw(uint32_t{3}) + raw(uint64_t{1} << 60) + raw(uint64_t{0});
  EXPECT_THAT(open_error(counts + std::string(1000, '\0')), HasSubstr("truncated"));
}

TEST(Gguf, HostileMetadata) {
  EXPECT_THAT(open_error(GgufBuilder().u32("a", 1).u32("a", 2).build()),
              AllOf(HasSubstr("\"a\""), HasSubstr("twice")));
  EXPECT_THAT(open_error(GgufBuilder().value("a", static_cast<GgufKind>(13), "").build()),
              HasSubstr("unknown kind 13"));
  EXPECT_THAT(open_error(GgufBuilder().value("a", GgufKind::kBool, "\2").build()),
              HasSubstr("bool"));
  EXPECT_THAT(open_error(GgufBuilder().value("a", GgufKind::kString, raw(UINT64_MAX)).build()),
              HasSubstr("truncated"));
  for (const GgufKind kind : {GgufKind::kU8, GgufKind::kF64, GgufKind::kString, GgufKind::kArray}) {
    EXPECT_THAT(open_error(GgufBuilder().array("a", kind, UINT64_MAX / 2, "").build()),
                HasSubstr("truncated"));
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += raw(uint32_t{9}) + raw(uint64_t{1});
  EXPECT_THAT(open_error(GgufBuilder().value("a", GgufKind::kArray, deep).build()),
              HasSubstr("nests"));
  EXPECT_THAT(open_error(GgufBuilder().u32("general.alignment", 24).build()),
              HasSubstr("power of two"));
  EXPECT_THAT(open_error(GgufBuilder().u32("general.alignment", 0).build()),
              HasSubstr("power of two"));
  EXPECT_THAT(open_error(GgufBuilder().string("general.alignment", "32").build()),
              HasSubstr("power of two"));
}

TEST(Gguf, HostileTensors) {
  const auto described = [](uint32_t type, const std::vector<uint64_t>& extents, uint64_t offset) {
    GgufBuilder builder;
    builder.tensor("first", GgmlType::kF32, {16}, std::string(64, '\0'));
    builder.describe_tensor("bad", type, extents, offset);
    return open_error(builder.build() + std::string(4096, '\0'));
  };
  EXPECT_EQ(described(0, {16}, 64), "");
  EXPECT_THAT(described(0, {16}, 32), AllOf(HasSubstr("\"bad\""), HasSubstr("overlaps")));
  EXPECT_THAT(described(0, {16}, 0), HasSubstr("overlaps"));
  EXPECT_THAT(described(0, {16}, 68), AllOf(HasSubstr("\"bad\""), HasSubstr("multiple of 32")));
  EXPECT_THAT(described(0, {2000}, 64), AllOf(HasSubstr("\"bad\""), HasSubstr("beyond")));
  EXPECT_THAT(described(0, {16}, UINT64_MAX - 31), HasSubstr("beyond"));
  EXPECT_THAT(described(0, {uint64_t{1} << 62, 16}, 64), HasSubstr("impossible shape"));
  EXPECT_THAT(described(0, {uint64_t{1} << 62, 16, 0}, 64), HasSubstr("impossible shape"));
  EXPECT_THAT(described(0, {0, uint64_t{1} << 62, 16}, 64), HasSubstr("impossible shape"));
  EXPECT_THAT(described(0, {UINT64_MAX}, 64), HasSubstr("impossible"));
  EXPECT_THAT(described(0, {1, 1, 1, 1, 1}, 64), HasSubstr("5 axes"));
  EXPECT_THAT(described(8, {33}, 64), AllOf(HasSubstr("Q8_0"), HasSubstr("blocks of 32")));
  EXPECT_THAT(described(4, {32}, 64), AllOf(HasSubstr("\"bad\""), HasSubstr("unknown type 4")));

  GgufBuilder twice;
  twice.tensor("x", GgmlType::kF32, {1}, floats({1})).tensor("x", GgmlType::kF32, {1}, floats({2}));
  EXPECT_THAT(open_error(twice.build()), AllOf(HasSubstr("\"x\""), HasSubstr("twice")));
}

TEST(Gguf, UnsupportedTypeIsNamedOnUse) {
  GgufBuilder builder;
  builder.tensor("x", GgmlType::kIQ1_S, {256}, std::string(50, '\0'));
  const std::string bytes = builder.build();
  const GgufFile file = open(bytes);
  EXPECT_THAT(error_of([&] { file.dequantize("x"); }),
              AllOf(HasSubstr("\"x\""), HasSubstr("IQ1_S")));
}

TEST(Gguf, AlignmentFromMetadata) {
  GgufBuilder builder;
  builder.alignment = 64;
  builder.u32("general.alignment", 64);
  builder.tensor("x", GgmlType::kF32, {1}, floats({7}));
  builder.tensor("y", GgmlType::kF32, {1}, floats({8}));
  const std::string bytes = builder.build();
  const GgufFile file = open(bytes);
  EXPECT_EQ(file.tensor("y").offset % 64, 0u);
  EXPECT_EQ(file.dequantize("y").span<float>()[0], 8);
}

// Every tensor of a real file, in order: name, type, shape, and the SHA-256 of all its f32 values.
void compare_with_table(const std::filesystem::path& model, const std::filesystem::path& table) {
  const GgufFile file = GgufFile::open(model);
  const auto expected = read_json_file(table);
  ASSERT_EQ(file.tensors().size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const GgufTensor& tensor = file.tensors()[i];
    EXPECT_EQ(tensor.name, expected[i]["name"]);
    EXPECT_EQ(tensor.info().name, expected[i]["type"]);
    EXPECT_EQ(tensor.shape, expected[i]["rows_cols"].get<Shape>());
    const Tensor values = file.dequantize(tensor);
    ASSERT_EQ(sha256_hex({values.bytes(), values.size_bytes()}), expected[i]["sha256_f32le"])
        << tensor.name;
  }
}

TEST(GgufReal, SmolLM2) {
  GRAFT_MODEL_OR_SKIP(model, "GRAFT_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf");
  GRAFT_SHARED_OR_SKIP(table, "real/models/smollm2_dequant.json");
  compare_with_table(model, table);
  const GgufFile file = GgufFile::open(model);
  EXPECT_EQ(file.get_string("tokenizer.ggml.pre"), "smollm");
  EXPECT_EQ(file.get_strings("tokenizer.ggml.tokens").size(), 49152u);
  EXPECT_EQ(file.get_strings("tokenizer.ggml.merges")[2], "i n");
  EXPECT_EQ(file.get_u32("tokenizer.ggml.eos_token_id"), 2u);
}

TEST(GgufReal, Gemma3) {
  GRAFT_MODEL_OR_SKIP(model, "GRAFT_GEMMA3", "gemma-3-270m-q4_k_m.gguf");
  GRAFT_SHARED_OR_SKIP(table, "real/models/gemma3_dequant.json");
  compare_with_table(model, table);
}

}  // namespace
}  // namespace graft
