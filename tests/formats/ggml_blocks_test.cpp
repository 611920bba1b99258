#include "formats/ggml_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "formats/safetensors.h"
#include "support/shared.h"

namespace graft {
namespace {

class GgmlBlocks : public ::testing::TestWithParam<GgmlType> {};

// Bit for bit what the gguf package gives: for random blocks, and for those that it quantised
// itself.
TEST_P(GgmlBlocks, EqualsReference) {
  GRAFT_SHARED_OR_SKIP(path, "golden/gguf_quants/quants.safetensors");
  const SafetensorsFile file = SafetensorsFile::open(path);
  const GgmlTypeInfo* info = ggml_type_info(static_cast<uint32_t>(GetParam()));
  ASSERT_NE(info, nullptr);
  const std::string name(info->name);
  int compared = 0;
  for (const auto& [bytes, values] :
       {std::pair{name + ".bytes", name + ".dequant"},
        std::pair{name + ".quantized", name + ".quantized_dequant"}}) {
    if (!file.contains(bytes)) continue;
    const Tensor expected = file.tensor(values);
    std::vector<float> actual(static_cast<size_t>(expected.elements()));
    dequantize_blocks(GetParam(), file.bytes(bytes), actual);
    EXPECT_EQ(std::memcmp(actual.data(), expected.bytes(), expected.size_bytes()), 0) << bytes;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(All, GgmlBlocks,
                         ::testing::Values(GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ4_0,
                                           GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
                                           GgmlType::kQ8_0, GgmlType::kQ2_K, GgmlType::kQ3_K,
                                           GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K,
                                           GgmlType::kIQ4_NL, GgmlType::kIQ4_XS, GgmlType::kMXFP4),
                         [](const auto& each) {
                           return std::string(
                               ggml_type_info(static_cast<uint32_t>(each.param))->name);
                         });

// Known by hand, so that something is proven where the reference is absent.
TEST(GgmlBlocksByHand, Q4_1) {
  std::vector<uint8_t> block = {0x00, 0x38, 0x00, 0xBC};  // scale 0.5, offset -1
  for (int i = 0; i < 16; ++i) block.push_back(static_cast<uint8_t>(i | (15 - i) << 4));
  std::vector<float> values(32);
  dequantize_blocks(GgmlType::kQ4_1, std::as_bytes(std::span(block)), values);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], 0.5f * static_cast<float>(i) - 1);
    EXPECT_EQ(values[static_cast<size_t>(16 + i)], 0.5f * static_cast<float>(15 - i) - 1);
  }
}

TEST(GgmlBlocksByHand, Mxfp4) {
  // All sixteen E2M1 values at scale 2^(128 - 127), and the smallest scales, which are subnormal.
  std::vector<uint8_t> block = {128};
  for (int i = 0; i < 16; ++i) block.push_back(static_cast<uint8_t>(i | i << 4));
  std::vector<float> values(32);
  dequantize_blocks(GgmlType::kMXFP4, std::as_bytes(std::span(block)), values);
  const std::vector<float> e2m1 = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(values[i], 2 * e2m1[i % 16]);
  for (const uint8_t exponent : {0, 1, 2}) {
    block[0] = exponent;
    dequantize_blocks(GgmlType::kMXFP4, std::as_bytes(std::span(block)), values);
    EXPECT_EQ(values[2], std::ldexp(1.0f, exponent - 127));
  }
}

TEST(GgmlTypes, Table) {
  EXPECT_EQ(ggml_type_info(12)->name, "Q4_K");
  EXPECT_EQ(ggml_type_info(4), nullptr);  // removed from the format
  EXPECT_EQ(ggml_type_info(1000), nullptr);
  EXPECT_FALSE(ggml_type_info(9)->expandable);
}

}  // namespace
}  // namespace graft
