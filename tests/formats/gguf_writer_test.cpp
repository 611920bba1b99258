#include "formats/gguf_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/gguf_builder.h"
#include "support/temporary.h"

namespace graft {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

const std::vector<std::string> kTokens = {"a", "", "\xc4\xa0t"};
const std::vector<int32_t> kTypes = {1, -2, 3};
const std::vector<float> kScores = {0.5F, -1.25F};

GgufMetadata every_kind() {
  GgufMetadata metadata;
  metadata.set_string("general.architecture", "llama");
  metadata.set_u32("count", 4'000'000'000U);
  metadata.set_f32("epsilon", 1e-5F);
  metadata.set_bool("flag", true);
  metadata.set_strings("tokens", kTokens);
  metadata.set_i32s("types", kTypes);
  metadata.set_f32s("scores", kScores);
  return metadata;
}

TEST(GgufWriter, WhatIsWrittenReadsTheSame) {
  const TemporaryFolder folder;
  const auto path = folder / "x.gguf";
  const Tensor matrix = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor cube = Tensor::of<float>({2, 1, 2}, {7, 8, 9, 10});
  const Tensor vector = Tensor::of<float>({3}, {0.5F, -0.25F, 3});
  GgufWriter writer(path, every_kind(),
                    {{"matrix", GgmlType::kF32, {2, 3}},
                     {"half", GgmlType::kF16, {3}},
                     {"cube", GgmlType::kF32, {2, 1, 2}},
                     {"brain", GgmlType::kBF16, {3}}});
  writer.add("matrix", matrix);
  writer.add("half", vector.as(DType::kF16));
  writer.add("cube", cube);
  writer.add("brain", vector.as(DType::kBF16));
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.commit();

  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.version(), 3U);
  EXPECT_THAT(file.keys(), ElementsAre("general.architecture", "count", "epsilon", "flag", "tokens",
                                       "types", "scores"));
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_u32("count"), 4'000'000'000U);
  EXPECT_EQ(file.get_f32("epsilon"), 1e-5F);
  EXPECT_TRUE(file.get_bool("flag"));
  EXPECT_EQ(file.get_strings("tokens"), kTokens);
  EXPECT_EQ(file.get_i32s("types"), kTypes);
  EXPECT_EQ(file.get_f32s("scores"), kScores);
  const auto values = [&](const char* name) {
    const Tensor t = file.dequantize(name);
    return std::vector<float>(t.data<float>(), t.data<float>() + t.elements());
  };
  EXPECT_THAT(values("matrix"), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(file.tensor("matrix").shape, (Shape{2, 3}));
  EXPECT_EQ(file.tensor("cube").shape, (Shape{2, 1, 2}));
  EXPECT_THAT(values("cube"), ElementsAre(7, 8, 9, 10));
  EXPECT_THAT(values("half"), ElementsAre(0.5F, -0.25F, 3));
  EXPECT_THAT(values("brain"), ElementsAre(0.5F, -0.25F, 3));
  for (const GgufTensor& t : file.tensors()) EXPECT_EQ(t.offset % 32, 0U) << t.name;
}

// Every kind of value, also those that no setter writes, goes from file to file as it is.
TEST(GgufWriter, CopiesValuesOfAnyKind) {
  const TemporaryFolder folder;
  testing::GgufBuilder builder;
  builder.string("s", "text")
      .value("i8", GgufKind::kI8, testing::raw(int8_t{-3}))
      .value("u64", GgufKind::kU64, testing::raw(UINT64_MAX))
      .strings("list", kTokens)
      .array("nested", GgufKind::kArray, 1,
             testing::raw(uint32_t{8}) + testing::raw(uint64_t{1}) + testing::gguf_string("x"));
  const std::string bytes = builder.build();
  const GgufFile source = GgufFile::open(testing::as_bytes(bytes), "source.gguf");
  GgufMetadata metadata;
  for (const std::string& key : source.keys()) metadata.copy(source, key);
  GgufWriter writer(folder / "copy.gguf", metadata, {});
  writer.commit();
  const GgufFile copy = GgufFile::open(folder / "copy.gguf");
  EXPECT_EQ(copy.keys(), source.keys());
  for (const std::string& key : source.keys()) {
    EXPECT_EQ(copy.describe(key), source.describe(key)) << key;
    const auto a = copy.value_bytes(key), b = source.value_bytes(key);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << key;
  }
}

TEST(GgufWriter, SettingAgainReplacesInPlace) {
  GgufMetadata metadata = every_kind();
  metadata.set_string("count", "no number any more");
  metadata.remove("flag");
  const TemporaryFolder folder;
  GgufWriter writer(folder / "x.gguf", metadata, {});
  writer.commit();
  const GgufFile file = GgufFile::open(folder / "x.gguf");
  EXPECT_EQ(file.keys()[1], "count");
  EXPECT_EQ(file.get_string("count"), "no number any more");
  EXPECT_FALSE(file.has("flag"));
  EXPECT_EQ(file.keys().size(), 6U);
}

TEST(GgufWriter, RefusesWhatTheFormatHasNot) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] {
                GgufWriter writer(folder / "x.gguf", {}, {{"q", GgmlType::kQ8_0, {2, 33}}});
              }),
              HasSubstr("\"q\" has rows of 33 values"));
  EXPECT_THAT(error_of([&] {
                GgufWriter writer(folder / "x.gguf", {}, {{"t", GgmlType::kF32, {1, 1, 1, 1, 1}}});
              }),
              HasSubstr("5 axes"));
  EXPECT_THAT(error_of([] { ggml_type_of(DType::kS32); }), HasSubstr("s32"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace graft
