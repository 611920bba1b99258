#pragma once
// Packed matrices: weights of few bits as they stay in memory, in files and in the graph.
//
// A packed matrix is a u8 array of blocks, each a run of neighbouring values with what belongs to
// them (scale, codes, for some formats an offset), row after row. All of ggml's block formats are
// of this form as they lie in GGUF files, so those are used where they are mapped; NF4, int4, int8
// and fp8 are brought into it when a base is quantised or read. Where a block does not divide the
// row (bitsandbytes cuts the flattened matrix), blocks run on through the rows.
//
//   PackedLayout layout{PackedKind::kNf4, 64, 576, 1536};   // [out, in] = [576, 1536]
//   layout.stored_shape();                                  // u8 [576, 864]
//   PackedLayout::parse(layout.text());                     // "nf4/64[576,1536]"
//
// formats/packed_blocks.h expands them (the reference), formats/quantize.h makes them, ops/unpack.h
// expands them in primitives, cpu/kernels/unpack.h tile by tile beside a product.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/tensor.h"

namespace graft {

// The bytes of a block of n values:
enum class PackedKind : uint8_t {
  kNf4,        // f32 largest magnitude, n/2 bytes: two codes, the earlier in the high nibble
  kNf4Double,  // u8 code of that magnitude, n/2 bytes; see PackedLayout::header_bytes
  kInt4,       // f32 scale, n/2 bytes: two codes plus 8, the earlier in the high nibble
  kInt8,       // f32 scale, n codes of 8 bits
  kFp8,        // f32 scale, n values of f8 (e4m3fn)
  // ggml's, see formats/ggml_blocks.h.
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};
std::string_view packed_kind_name(PackedKind kind);  // "nf4", "nf4_double", "Q4_K"
bool is_ggml(PackedKind kind);
std::optional<PackedKind> ggml_kind(std::string_view name);  // of "Q4_K"; none: not a packed one

struct PackedLayout {
  PackedKind kind = PackedKind::kNf4;
  int64_t block = 64;             // values of a block
  int64_t rows = 0, columns = 0;  // of the matrix: [out, in]

  int64_t elements() const { return rows * columns; }
  int64_t blocks() const { return (elements() + block - 1) / block; }
  int64_t block_bytes() const;
  bool by_rows() const { return columns % block == 0 && kind != PackedKind::kNf4Double; }
  // kNf4Double: before the blocks, f32 offset and an f32 scale for each 256 blocks; the magnitude
  // of block b is dynamic_map()[code] * scale[b / 256] + offset.
  int64_t header_bytes() const;
  int64_t bytes() const { return header_bytes() + blocks() * block_bytes(); }
  // u8 [rows, bytes of a row], or [bytes] where rows are no whole number of blocks.
  Shape stored_shape() const;

  std::string scheme() const;  // "nf4 block 64", for people
  std::string text() const;    // "nf4/64[576,1536]"
  // Of what text() gave; anything else is a fault in graft.
  static PackedLayout parse(std::string_view text);
  friend bool operator==(const PackedLayout&, const PackedLayout&) = default;
};

// The block size of a ggml format. The others have none of their own.
int64_t ggml_block(PackedKind kind);

// Blocks of kNf4Double that share a scale.
inline constexpr int64_t kNestedBlock = 256;

// The sixteen values of NF4 (Dettmers et al., 2023, appendix E), ascending.
extern const std::array<float, 16> kNf4Levels;
// Those of IQ4_NL and MXFP4 (doubled), by code.
extern const std::array<int8_t, 16> kNonLinearLevels;
extern const std::array<int8_t, 16> kMxfp4Levels;
// The 8-bit dynamic map with which bitsandbytes quantises magnitudes (Dettmers, 2016; signed),
// ascending.
const std::array<float, 256>& dynamic_map();

}  // namespace graft
