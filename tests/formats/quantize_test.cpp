#include "formats/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "formats/packed_blocks.h"
#include "formats/safetensors.h"
#include "support/errors.h"
#include "support/packed_samples.h"
#include "support/shared.h"

namespace graft::testing {
namespace {

const uint8_t* block_at(const PackedLayout& layout, const Tensor& packed, int64_t b) {
  return packed.data<uint8_t>() + layout.header_bytes() + b * layout.block_bytes();
}

float float_at(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void expect_equal_bits(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.size_bytes(), expected.size_bytes()) << what;
  EXPECT_EQ(std::memcmp(actual.bytes(), expected.bytes(), actual.size_bytes()), 0) << what;
}

TEST(Quantize, Nf4EqualsBitsandbytes) {
  GRAFT_SHARED_OR_SKIP(path, "golden/nf4/bitsandbytes.safetensors");
  const SafetensorsFile golden = SafetensorsFile::open(path);
  for (const char* name : {"w0", "w1", "w2"}) {
    const Tensor w = golden.tensor(name);
    for (const int64_t block : {32, 64}) {
      const std::string prefix = fmt::format("{}.block{}.", name, block);
      const PackedLayout layout{PackedKind::kNf4, block, w.shape()[0], w.shape()[1]};
      const Tensor packed = quantize(w, layout, scale_bound(layout.kind, false), name).packed;
      const Tensor codes = golden.tensor(prefix + "packed"),
                   absmax = golden.tensor(prefix + "absmax");
      for (int64_t b = 0; b < layout.blocks(); ++b) {
        const uint8_t* at = block_at(layout, packed, b);
        ASSERT_EQ(float_at(at), absmax.data<float>()[b]) << prefix << b;
        const int64_t first = b * block / 2;
        for (int64_t i = 0; i < block / 2 && first + i < codes.elements(); ++i) {
          ASSERT_EQ(at[4 + i], codes.data<uint8_t>()[first + i]) << prefix << b << "," << i;
        }
      }
      expect_equal_bits(expand_packed(layout, packed), golden.tensor(prefix + "dequant"), prefix);
    }
  }
}

TEST(Quantize, DoubleQuantisationEqualsBitsandbytes) {
  GRAFT_SHARED_OR_SKIP(path, "golden/nf4/bitsandbytes.safetensors");
  const SafetensorsFile golden = SafetensorsFile::open(path);
  expect_equal_bits(Tensor::of<float>({256}, {dynamic_map().begin(), dynamic_map().end()}),
                    golden.tensor("w0.block32.double.nested_map"), "map");
  for (const char* name : {"w0", "w1", "w2"}) {
    const Tensor w = golden.tensor(name);
    for (const int64_t block : {32, 64}) {
      const std::string prefix = fmt::format("{}.block{}.double.", name, block);
      const PackedLayout layout{PackedKind::kNf4Double, block, w.shape()[0], w.shape()[1]};
      const Tensor packed = quantize(w, layout, scale_bound(layout.kind, false), name).packed;
      EXPECT_EQ(float_at(packed.data<uint8_t>()),
                golden.tensor(prefix + "offset").data<float>()[0]);
      EXPECT_EQ(float_at(packed.data<uint8_t>() + 4),
                golden.tensor(prefix + "nested_absmax").data<float>()[0]);
      const Tensor codes = golden.tensor(prefix + "absmax_code");
      for (int64_t b = 0; b < layout.blocks(); ++b) {
        ASSERT_EQ(*block_at(layout, packed, b), codes.data<uint8_t>()[b]) << prefix << b;
      }
      expect_equal_bits(expand_packed(layout, packed), golden.tensor(prefix + "dequant"), prefix);
    }
  }
}

Tensor transposed(const Tensor& x) {
  const Tensor values = x.as(DType::kF32);
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  Tensor result = Tensor::empty(DType::kF32, {columns, rows});
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      result.data<float>()[j * rows + i] = values.data<float>()[i * columns + j];
    }
  }
  return result;
}

struct TileCase {
  const char* suffix;
  PackedKind kind;
  int64_t tile;  // 0: a row
  bool whole_range;
};

// The golden kernels are [in, out]; graft's weights are [out, in].
TEST(Quantize, TilesEqualQwix) {
  GRAFT_SHARED_OR_SKIP(path, "golden/nf4/tiles.safetensors");
  const SafetensorsFile golden = SafetensorsFile::open(path);
  const TileCase cases[] = {{"nf4.tile16", PackedKind::kNf4, 16, true},
                            {"nf4.tile32", PackedKind::kNf4, 32, true},
                            {"int4.tile16.bound7.5", PackedKind::kInt4, 16, true},
                            {"int4.tile32.bound7.5", PackedKind::kInt4, 32, true},
                            {"int4.tile16.bound7", PackedKind::kInt4, 16, false},
                            {"int4.tile32.bound7", PackedKind::kInt4, 32, false},
                            {"int8.channel.bound127.5", PackedKind::kInt8, 0, true},
                            {"int8.channel.bound127", PackedKind::kInt8, 0, false},
                            {"fp8_e4m3.channel", PackedKind::kFp8, 0, true}};
  for (const char* name : {"k0", "k1"}) {
    const Tensor w = transposed(golden.tensor(name));
    for (const TileCase& c : cases) {
      const std::string prefix = fmt::format("{}.{}.", name, c.suffix);
      const int64_t columns = w.shape()[1], block = c.tile > 0 ? c.tile : columns;
      const PackedLayout layout{c.kind, block, w.shape()[0], columns};
      const Tensor packed = quantize(w, layout, scale_bound(c.kind, c.whole_range), name).packed;
      const Tensor code = golden.tensor(prefix + "code"), scale = golden.tensor(prefix + "scale");
      const Tensor dequant = transposed(golden.tensor(prefix + "dequant"));
      const Tensor actual = expand_packed(layout, packed);
      int64_t halves = 0;
      for (int64_t o = 0; o < layout.rows; ++o) {
        for (int64_t i = 0; i < columns; ++i) {
          const uint8_t* at = block_at(layout, packed, o * (columns / block) + i / block);
          const float expected_scale = scale.data<float>()[i / block * layout.rows + o];
          ASSERT_EQ(float_at(at), expected_scale) << prefix;
          const bool is_signed = code.dtype() == DType::kS8;
          const int expected_code = is_signed ? code.data<int8_t>()[i * layout.rows + o]
                                              : code.data<uint8_t>()[i * layout.rows + o];
          int actual_code;
          if (c.kind == PackedKind::kNf4 || c.kind == PackedKind::kInt4) {
            const int pair = at[4 + i % block / 2];
            actual_code = i % 2 == 0 ? pair >> 4 : pair & 15;
            if (c.kind == PackedKind::kInt4) actual_code -= 8;
          } else {
            const uint8_t byte = at[4 + i % block];
            actual_code = is_signed ? static_cast<int8_t>(byte) : byte;
          }
          if (actual_code == expected_code) {
            ASSERT_EQ(actual.data<float>()[o * columns + i],
                      dequant.data<float>()[o * columns + i]);
            continue;
          }
          // Only at an exact half, the largest entry under the .5 bounds, by one code.
          ++halves;
          ASSERT_TRUE(c.whole_range && c.kind != PackedKind::kNf4 && c.kind != PackedKind::kFp8);
          ASSERT_EQ(std::abs(actual_code - expected_code), 1) << prefix;
          const float quotient = w.data<float>()[o * columns + i] / expected_scale;
          ASSERT_NEAR(std::fabs(quotient - std::floor(quotient)), 0.5, 1e-5) << prefix;
        }
      }
      EXPECT_LE(halves, 4) << prefix;
    }
  }
}

TEST(Quantize, GgmlBlocksExpandAsBefore) {
  GRAFT_SHARED_OR_SKIP(path, "golden/gguf_quants/quants.safetensors");
  const SafetensorsFile golden = SafetensorsFile::open(path);
  for (int kind = static_cast<int>(PackedKind::kF16); kind <= static_cast<int>(PackedKind::kMXFP4);
       ++kind) {
    const auto k = static_cast<PackedKind>(kind);
    const std::string name(packed_kind_name(k));
    if (!golden.contains(name + ".bytes")) continue;
    const PackedLayout layout{k, ggml_block(k), 4, 256};
    expect_equal_bits(expand_packed(layout, golden.tensor(name + ".bytes")),
                      golden.tensor(name + ".dequant"), name);
  }
}

TEST(Quantize, PartsOfAMatrixExpandAsTheWhole) {
  for (const PackedLayout& layout : packed_layouts(5)) {
    const Tensor packed = random_packed(layout, 3);
    ASSERT_EQ(static_cast<int64_t>(packed.size_bytes()), layout.bytes());
    EXPECT_EQ(PackedLayout::parse(layout.text()), layout);
    const Tensor whole = expand_packed(layout, packed);
    for (const int64_t first : {int64_t{1}, layout.columns - 3, 2 * layout.columns + 17}) {
      std::vector<float> part(static_cast<size_t>(layout.columns));
      expand_packed(layout, packed.bytes(), first, part);
      EXPECT_EQ(std::memcmp(part.data(), whole.data<float>() + first, part.size() * 4), 0)
          << layout.text();
    }
  }
}

TEST(Quantize, ErrorIsThatOfTheExpandedMatrix) {
  const PackedLayout layout{PackedKind::kNf4, 64, 40, 192};
  const Tensor w = random_weights(40, 192, 9);
  const Quantized q = quantize(w, layout, 0, "w");
  const Tensor back = expand_packed(layout, q.packed);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < w.elements(); ++i) {
    const auto x = static_cast<double>(w.data<float>()[i]);
    error += std::pow(static_cast<double>(back.data<float>()[i]) - x, 2);
    norm += x * x;
  }
  EXPECT_NEAR(q.relative_error(), std::sqrt(error / norm), 1e-9);
  EXPECT_GT(q.relative_error(), 0.05);
  EXPECT_LT(q.relative_error(), 0.12);
}

TEST(Quantize, ZeroBlocksStayZero) {
  for (const PackedKind kind : {PackedKind::kNf4, PackedKind::kNf4Double, PackedKind::kInt4,
                                PackedKind::kInt8, PackedKind::kFp8}) {
    const PackedLayout layout{kind, 32, 4, 64};
    const Tensor zeros = Tensor::zeros(DType::kF32, {4, 64});
    const Tensor back =
        expand_packed(layout, quantize(zeros, layout, scale_bound(kind), "w").packed);
    for (int64_t i = 0; i < back.elements(); ++i) ASSERT_EQ(back.data<float>()[i], 0.0F);
  }
}

TEST(Quantize, WhatIsNotFiniteIsRefused) {
  for (const float fault :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t at : {0, 37, 191}) {
      Tensor w = random_weights(1, 192, 4);
      w.data<float>()[at] = fault;
      EXPECT_THROW(quantize(w, {PackedKind::kNf4, 64, 1, 192}, 0, "w"), Error);
    }
  }
  const PackedLayout layout{PackedKind::kNf4, 64, 2, 64};
  Tensor packed = random_packed(layout, 1).clone();
  check_scales(layout, packed, "w");
  packed.data<uint8_t>()[36 + 3] = 0x7F;
  packed.data<uint8_t>()[36 + 2] = 0xC0;
  EXPECT_THROW(check_scales(layout, packed, "w"), Error);
}

}  // namespace
}  // namespace graft::testing
