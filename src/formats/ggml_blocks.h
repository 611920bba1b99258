#pragma once
// The block formats of ggml, in which GGUF files keep weights: how many values a block holds, how
// many bytes it takes, and how it expands to f32.
//
// A row is a whole number of blocks. Expanding gives exactly the values of the ggml and gguf-py
// code: one multiplication (and for formats with an offset one addition) in f32, in their order.
//
//   const GgmlTypeInfo* info = ggml_type_info(12);  // Q4_K: 256 values in 144 bytes
//   dequantize_blocks(GgmlType::kQ4_K, bytes, values);

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace graft {

// The numbers are those in files.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
};

struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;  // "Q4_K"
  size_t block_values;
  size_t block_bytes;
  bool expandable;  // dequantize_blocks knows it
};

const GgmlTypeInfo* ggml_type_info(uint32_t type);  // nullptr: unknown number

// Expands blocks to values. `type` must be expandable and the sizes must agree (asserted).
void dequantize_blocks(GgmlType type, std::span<const std::byte> blocks, std::span<float> values);

// The 6-bit scale and offset of one of the eight groups of 32 values in a block of Q4_K or Q5_K,
// which hold them packed in 12 bytes: the first four groups in bytes 0-3 and 4-7; the others take
// their low bits from bytes 8-11 and their two high bits from the spare ones of bytes 0-7. Here,
// so that kernels of every instruction set have it inline.
struct GroupOfK {
  int scale, offset;
};
inline GroupOfK group_of_k(const uint8_t* block, size_t group) {
  const uint8_t* packed = block + 4;
  if (group < 4) return {packed[group] & 63, packed[4 + group] & 63};
  return {(packed[4 + group] & 15) | (packed[group - 4] >> 6) << 4,
          packed[4 + group] >> 4 | (packed[group] >> 6) << 4};
}

}  // namespace graft
