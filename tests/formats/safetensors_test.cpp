#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "support/errors.h"
#include "support/shared.h"
#include "support/temporary.h"

namespace graft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// A file with this header and `size` bytes of data, the i-th of value i.
std::string file_of(const std::string& header, size_t size) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  bytes += header;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(i);
  return bytes;
}

SafetensorsFile open(const std::string& bytes) {
  return SafetensorsFile::open(std::as_bytes(std::span(bytes)), "test.safetensors");
}

std::string open_error(const std::string& header, size_t size) {
  return error_of([&] { open(file_of(header, size)); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

const char* const kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("a":{"dtype":"U8","shape":[3],"data_offsets":[16,19]},)"
    R"("none":{"dtype":"F32","shape":[0,5],"data_offsets":[19,19]},)"
    R"("scalar":{"dtype":"I16","shape":[],"data_offsets":[19,21]}}  )";

TEST(Safetensors, Reads) {
  const std::string bytes = file_of(kGood, 21);
  const SafetensorsFile file = open(bytes);
  EXPECT_THAT(file.names(), ElementsAre("b", "a", "none", "scalar"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensor("b").shape(), (Shape{2, 2}));
  EXPECT_EQ(file.tensor("b").dtype(), DType::kF32);
  EXPECT_THAT(file.tensor("a").span<uint8_t>(), ElementsAre(16, 17, 18));
  EXPECT_EQ(file.tensor("none").elements(), 0);
  EXPECT_EQ(file.find("scalar")->size, 2u);
  EXPECT_EQ(file.bytes("scalar")[1], std::byte{20});
  EXPECT_EQ(file.find("missing"), nullptr);
  EXPECT_THAT(error_of([&] { file.tensor("missing"); }), HasSubstr("\"missing\""));
  EXPECT_THAT(error_of([&] { file.tensor("scalar"); }),
              AllOf(HasSubstr("\"scalar\""), HasSubstr("I16")));
}

TEST(Safetensors, ViewsBorrowUnlessMisaligned) {
  // With 8 + 62 bytes before it, data in memory aligned to 8 begins at a multiple of 2 only.
  std::string header =
      "{" + entry("x", "F32", "[1]", "[0,4]") + "," + entry("y", "U8", "[1]", "[4,5]") + "}";
  for (const size_t padding : {0u, 1u, 2u, 3u}) {
    const std::string bytes = file_of(header + std::string(padding, ' '), 5);
    const SafetensorsFile file = open(bytes);
    const Tensor x = file.tensor("x");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.bytes()) % 4, 0u);
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data()) + file.find("x")->offset;
    EXPECT_EQ(x.bytes() == data, reinterpret_cast<uintptr_t>(data) % 4 == 0);
    EXPECT_EQ(std::memcmp(x.bytes(), data, 4), 0);
    EXPECT_EQ(file.tensor("y").bytes(), data + 4);
  }
}

TEST(Safetensors, TruncatedAnywhere) {
  const std::string bytes = file_of(kGood, 21);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(error_of([&] { open(bytes.substr(0, length)); }), "") << length;
  }
  EXPECT_THAT(error_of([&] { open(bytes.substr(0, bytes.size() - 1)); }), HasSubstr("\"scalar\""));
  EXPECT_THAT(error_of([&] { open(bytes + "x"); }), HasSubstr("1 bytes after its last tensor"));
}

// No single wrong byte may do more than raise an Error.
TEST(Safetensors, AnyByteWrong) {
  const std::string bytes = file_of(kGood, 21);
  for (size_t place = 0; place < bytes.size(); ++place) {
    for (const char value : std::string("\0\x01\xff\x80\"{}[],:-.09ueF ", 20)) {
      std::string damaged = bytes;
      damaged[place] = value;
      error_of([&] {
        const SafetensorsFile file = open(damaged);
        for (const std::string& name : file.names()) {
          if (file.find(name)->dtype) file.tensor(name);
        }
      });
    }
  }
}

TEST(Safetensors, HeaderLength) {
  std::string bytes = file_of(kGood, 21);
  const auto with_length = [&](uint64_t length) {
    std::memcpy(bytes.data(), &length, 8);
    return error_of([&] { open(bytes); });
  };
  EXPECT_THAT(with_length(UINT64_MAX), HasSubstr("header"));
  EXPECT_THAT(with_length(100'000'001), HasSubstr("header"));
  EXPECT_THAT(with_length(100'000'000), HasSubstr("truncated"));
  EXPECT_THAT(with_length(0), HasSubstr("not a JSON object"));
  EXPECT_THAT(open_error(" {}", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(open_error("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(open_error("{}}", 0), HasSubstr("JSON"));
  EXPECT_EQ(open_error("{}", 0), "");
}

TEST(Safetensors, DuplicatesAndDepth) {
  const std::string one = entry("x", "U8", "[1]", "[0,1]");
  EXPECT_THAT(open_error("{" + one + "," + one + "}", 1),
              AllOf(HasSubstr("\"x\""), HasSubstr("twice")));
  EXPECT_THAT(
      open_error(R"({"x":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1),
      HasSubstr("twice"));
  EXPECT_THAT(open_error("{\"x\":" + std::string(100000, '['), 1), HasSubstr("nested"));
}

TEST(Safetensors, EntriesAreChecked) {
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets, size_t size) {
    return open_error("{" + entry("x", dtype, shape, offsets) + "}", size);
  };
  EXPECT_EQ(one("F32", "[1]", "[0,4]", 4), "");
  EXPECT_EQ(one("F4", "[2,3]", "[0,3]", 3), "");
  EXPECT_THAT(one("F32", "[1]", "[0,8]", 8),
              AllOf(HasSubstr("\"x\""), HasSubstr("8 bytes, not 4")));
  EXPECT_THAT(one("F33", "[1]", "[0,4]", 4), AllOf(HasSubstr("\"x\""), HasSubstr("\"F33\"")));
  EXPECT_THAT(one("f32", "[1]", "[0,4]", 4), HasSubstr("unknown dtype"));
  EXPECT_THAT(one("F32", "[2]", "[0,8]", 4),
              AllOf(HasSubstr("\"x\""), HasSubstr("ends at byte 8")));
  EXPECT_THAT(one("F32", "[1]", "[4,0]", 4), HasSubstr("before it begins"));
  EXPECT_THAT(one("F32", "[1]", "[-4,0]", 4), HasSubstr("data_offset that is not"));
  EXPECT_THAT(one("F32", "[-1]", "[0,4]", 4), HasSubstr("shape that is not"));
  EXPECT_THAT(one("F32", "[1.0]", "[0,4]", 4), HasSubstr("shape that is not"));
  EXPECT_THAT(one("F32", "[\"1\"]", "[0,4]", 4), HasSubstr("shape that is not"));
  EXPECT_THAT(one("F32", "[1]", "[0,4,4]", 4), HasSubstr("list of two"));
  EXPECT_THAT(one("F32", "[1]", "4", 4), HasSubstr("list of two"));
  EXPECT_THAT(one("F32", "[9223372036854775808]", "[0,4]", 4), HasSubstr("shape that is not"));
  EXPECT_THAT(one("F32", "[4294967296,4294967296]", "[0,0]", 0), HasSubstr("impossible shape"));
  EXPECT_THAT(one("F32", "[0,4294967296,4294967296]", "[0,0]", 0), HasSubstr("impossible shape"));
  EXPECT_THAT(one("F32", "[4611686018427387904]", "[0,0]", 0), HasSubstr("impossible shape"));
  EXPECT_THAT(one("F4", "[3]", "[0,2]", 2), HasSubstr("whole bytes"));
  EXPECT_THAT(open_error(R"({"x":{"dtype":"U8","shape":[1]}})", 1), HasSubstr("lacks"));
  EXPECT_THAT(open_error(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"scale":2}})", 1),
              HasSubstr("\"scale\""));
  EXPECT_THAT(open_error(R"({"x":[1]})", 1), HasSubstr("\"x\""));
  EXPECT_THAT(open_error(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__"));
}

TEST(Safetensors, CoverageIsChecked) {
  const auto two = [](const std::string& first, const std::string& second, size_t size) {
    return open_error(
        "{" + entry("x", "U8", "[2]", first) + "," + entry("y", "U8", "[2]", second) + "}", size);
  };
  EXPECT_EQ(two("[0,2]", "[2,4]", 4), "");
  EXPECT_EQ(two("[2,4]", "[0,2]", 4), "");
  EXPECT_THAT(two("[0,2]", "[1,3]", 3),
              AllOf(HasSubstr("\"y\""), HasSubstr("overlaps tensor \"x\"")));
  EXPECT_THAT(two("[0,2]", "[0,2]", 2), HasSubstr("overlaps"));
  EXPECT_THAT(two("[0,2]", "[3,5]", 5), AllOf(HasSubstr("\"y\""), HasSubstr("1 bytes unused")));
  EXPECT_THAT(two("[1,3]", "[3,5]", 5), HasSubstr("unused"));
  EXPECT_THAT(two("[0,2]", "[2,4]", 5), HasSubstr("after its last tensor"));
}

TEST(Safetensors, BoolsAreZeroOrOne) {
  const std::string header = "{" + entry("x", "BOOL", "[2]", "[0,2]") + "}";
  EXPECT_EQ(open(file_of(header, 2)).tensor("x").dtype(), DType::kBool);
  std::string bytes = file_of(header, 2);
  bytes.back() = 2;
  const SafetensorsFile file = open(bytes);
  EXPECT_THAT(error_of([&] { file.tensor("x"); }), HasSubstr("neither 0 nor 1"));
}

TEST(Safetensors, WritesExactly) {
  TemporaryFolder folder;
  write_safetensors(
      folder / "x.safetensors",
      {{"b", Tensor::of<float>({1, 2}, {1, -2})}, {"a\"", Tensor::of<uint8_t>({}, {7})}},
      {{"format", "pt"}});
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("a\"":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})";
  const std::string bytes = read_text_file(folder / "x.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  EXPECT_EQ(bytes.substr(8 + header.size(), length - header.size()),
            std::string(length - header.size(), ' '));
  EXPECT_EQ(bytes.substr(8 + length), std::string("\0\0\x80\x3f\0\0\0\xc0\7", 9));
}

TEST(Safetensors, EveryTypeRoundTrips) {
  TemporaryFolder folder;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype_bits(dtype) < 8) {
      EXPECT_EQ(safetensors_type_name(dtype), "");
      EXPECT_THAT(error_of([&] {
                    write_safetensors(folder / "no", {{"t", Tensor::zeros(dtype, {2})}});
                  }),
                  HasSubstr("\"t\""));
      continue;
    }
    EXPECT_EQ(dtype_from_safetensors(safetensors_type_name(dtype)), dtype);
    Tensor t = Tensor::zeros(dtype, {3, 1});
    for (size_t b = 0; b < t.size_bytes(); ++b) t.mutable_bytes()[b] = std::byte{1};
    tensors.emplace_back(dtype_name(dtype), t);
  }
  tensors.emplace_back("empty", Tensor::zeros(DType::kF32, {0, 4}));
  write_safetensors(folder / "x.safetensors", tensors);
  const SafetensorsFile file = SafetensorsFile::open(folder / "x.safetensors");
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, expected] : tensors) {
    const Tensor read = file.tensor(name);
    EXPECT_EQ(read.dtype(), expected.dtype());
    EXPECT_EQ(read.shape(), expected.shape());
    EXPECT_EQ(std::memcmp(read.bytes(), expected.bytes(), expected.size_bytes()), 0) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "no"));
}

TEST(Safetensors, WriterStreamsAndInsistsOnTheDeclaration) {
  TemporaryFolder folder;
  const Tensor x = Tensor::of<float>({2}, {1, 2});
  {
    SafetensorsWriter writer(folder / "x", {{"x", DType::kF32, {2}}, {"y", DType::kF32, {2}}});
    EXPECT_THROW(writer.add("y", x), std::logic_error);
    writer.add("x", x);
    EXPECT_THROW(writer.add("y", x.reshaped({2, 1})), std::logic_error);
    EXPECT_THROW(writer.commit(), std::logic_error);
    writer.add_bytes("y", {x.bytes(), 3});
    EXPECT_THROW(writer.add_bytes("y", {x.bytes(), 6}), std::logic_error);
    writer.add_bytes("y", {x.bytes() + 3, 5});
    EXPECT_FALSE(std::filesystem::exists(folder / "x"));
    writer.commit();
  }
  EXPECT_THAT(SafetensorsFile::open(folder / "x").tensor("y").span<float>(), ElementsAre(1, 2));
  EXPECT_THROW(SafetensorsWriter(folder / "z", {{"x", DType::kF32, {2}}, {"x", DType::kF32, {2}}}),
               std::logic_error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

class Shards : public ::testing::Test {
 protected:
  void SetUp() override {
    write_safetensors(folder_ / "model-1.safetensors", {{"x", Tensor::of<float>({1}, {1})}});
    write_safetensors(folder_ / "model-2.safetensors",
                      {{"y", Tensor::of<float>({1}, {2})}, {"z", Tensor::of<float>({1}, {3})}});
  }
  std::string open_with(const std::string& weight_map) {
    write_file_atomically(folder_ / "model.safetensors.index.json",
                          R"({"metadata":{"total_size":12},"weight_map":)" + weight_map + "}");
    return error_of([&] { SafetensorsFile::open(folder_.path()); });
  }
  TemporaryFolder folder_;
};

TEST_F(Shards, Read) {
  EXPECT_EQ(open_with(R"({"z":"model-2.safetensors","y":"model-2.safetensors",
                          "x":"model-1.safetensors"})"),
            "");
  const SafetensorsFile file = SafetensorsFile::open(folder_.path());
  EXPECT_THAT(file.names(), ElementsAre("x", "y", "z"));
  EXPECT_EQ(file.tensor("z").span<float>()[0], 3);
  EXPECT_EQ(file.files().size(), 2u);
}

TEST_F(Shards, IndexIsChecked) {
  EXPECT_THAT(open_with(R"({"x":"model-1.safetensors","y":"model-2.safetensors"})"),
              HasSubstr("\"z\" of model-2.safetensors is not in the index"));
  EXPECT_THAT(open_with(R"({"x":"model-2.safetensors","y":"model-2.safetensors",
                            "z":"model-2.safetensors"})"),
              HasSubstr("\"x\" is not in model-2.safetensors"));
  EXPECT_THAT(open_with(R"({"x":"model-9.safetensors"})"), HasSubstr("model-9.safetensors"));
  EXPECT_THAT(open_with(R"({"x":"../model-1.safetensors"})"), HasSubstr("not the name of a file"));
  EXPECT_THAT(open_with(R"({"x":".."})"), HasSubstr("not the name of a file"));
  EXPECT_THAT(open_with(R"({"x":1})"), HasSubstr("weight_map.x"));
  EXPECT_THAT(open_with("[]"), HasSubstr("weight_map"));
}

TEST_F(Shards, TensorInTwoFiles) {
  write_safetensors(folder_ / "model-1.safetensors", {{"y", Tensor::of<float>({1}, {1})}});
  EXPECT_THAT(open_with(R"({"y":"model-1.safetensors","z":"model-2.safetensors"})"),
              AllOf(HasSubstr("\"y\""), HasSubstr("another file")));
}

TEST(Safetensors, FolderWithoutModel) {
  TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(folder.path()); }),
              HasSubstr("holds neither model.safetensors"));
}

// A file written by the reference library: its header and data survive reading and writing.
TEST(SafetensorsGolden, RewritesReferenceFile) {
  GRAFT_SHARED_OR_SKIP(path, "golden/llama_a/adapter/adapter_model.safetensors");
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.names().size(), 28u);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.tensor(name));
  TemporaryFolder folder;
  write_safetensors(folder / "copy", tensors, file.metadata());
  EXPECT_EQ(read_text_file(folder / "copy"), read_text_file(path));
}

}  // namespace
}  // namespace graft
