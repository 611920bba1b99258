#pragma once
// Packed matrices to test with: every layout, on random valid blocks.

#include <vector>

#include "base/packed.h"
#include "base/random.h"
#include "formats/quantize.h"

namespace graft::testing {

inline Tensor random_weights(int64_t rows, int64_t columns, uint64_t seed) {
  Tensor values = Tensor::empty(DType::kF32, {rows, columns});
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (int64_t i = 0; i < values.elements(); ++i) {
    // A sum of four uniform numbers: near enough to a normal one.
    double sum = 0;
    for (int j = 0; j < 4; ++j) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      sum += static_cast<double>(state >> 40) / (1 << 24) - 0.5;
    }
    values.data<float>()[i] = static_cast<float>(0.05 * sum);
  }
  return values;
}

// Blocks of random bytes whose scales are finite and of a weight's size.
inline Tensor random_ggml_blocks(const PackedLayout& layout, uint64_t seed) {
  Tensor packed = Tensor::empty(DType::kU8, layout.stored_shape());
  uint64_t state = seed * 77 + 5;
  auto* bytes = packed.data<uint8_t>();
  for (int64_t i = 0; i < packed.elements(); ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    bytes[i] = static_cast<uint8_t>(state >> 56);
  }
  std::vector<int64_t> halves;
  switch (layout.kind) {
    case PackedKind::kQ4_1:
    case PackedKind::kQ5_1:
    case PackedKind::kQ4_K:
    case PackedKind::kQ5_K: halves = {1, 3}; break;
    case PackedKind::kQ2_K: halves = {81, 83}; break;
    case PackedKind::kQ3_K: halves = {109}; break;
    case PackedKind::kQ6_K: halves = {209}; break;
    case PackedKind::kMXFP4: break;
    default: halves = {1}; break;
  }
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    uint8_t* at = bytes + b * layout.block_bytes();
    // The high byte of an f16: exponents about 2^-6, either sign.
    for (const int64_t half : halves) at[half] = static_cast<uint8_t>((at[half] & 0x83) | 0x20);
    if (layout.kind == PackedKind::kBF16) at[1] = static_cast<uint8_t>((at[1] & 0x81) | 0x3C);
    if (layout.kind == PackedKind::kMXFP4) at[0] = static_cast<uint8_t>(120 + at[0] % 8);
  }
  return packed;
}

inline Tensor random_packed(const PackedLayout& layout, uint64_t seed) {
  if (is_ggml(layout.kind)) return random_ggml_blocks(layout, seed);
  return quantize(random_weights(layout.rows, layout.columns, seed), layout,
                  scale_bound(layout.kind), "test")
      .packed;
}

// Every kind with extents that suit it, and shapes at which blocks run over the ends of rows.
inline std::vector<PackedLayout> packed_layouts(int64_t rows) {
  std::vector<PackedLayout> layouts{
      {PackedKind::kNf4, 64, rows, 192},      {PackedKind::kNf4, 32, rows, 96},
      {PackedKind::kNf4, 64, rows, 50},       {PackedKind::kNf4, 16, rows, 48},
      {PackedKind::kNf4, 24, rows, 72},       {PackedKind::kNf4Double, 64, rows, 320},
      {PackedKind::kNf4Double, 64, rows, 50}, {PackedKind::kInt4, 32, rows, 96},
      {PackedKind::kInt4, 16, rows, 80},      {PackedKind::kInt8, 77, rows, 77},
      {PackedKind::kFp8, 128, rows, 128},     {PackedKind::kFp8, 50, rows, 50},
  };
  for (int kind = static_cast<int>(PackedKind::kF16); kind <= static_cast<int>(PackedKind::kMXFP4);
       ++kind) {
    const auto k = static_cast<PackedKind>(kind);
    layouts.push_back({k, ggml_block(k), rows, ggml_block(k) == 256 ? 512 : 96});
  }
  return layouts;
}

}  // namespace graft::testing
