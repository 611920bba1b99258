#pragma once
// Weights to packed matrices (base/packed.h), to the bit as bitsandbytes (NF4) and Qwix (the rest)
// compute them.
//
//   NF4:   level nearest to x / m, of two equally near the lower; m the block's largest magnitude.
//          Double: the m's, less their mean, are themselves quantised to 8 bits (Dettmers et al.,
//          2023, section 3); codes still come from the exact m.
//   int4, int8, fp8: x / s in f32, rounded to nearest, ties to even, and clipped; s = m / bound,
//          or 1 where that is 0.
//
//   PackedLayout layout{PackedKind::kInt8, 576, 1536, 576};        // a scale for each row
//   Quantized q = quantize(weight, layout, scale_bound(kind), "w");
//   q.relative_error();                                             // |W - Q| / |W|

#include <span>
#include <string>
#include <vector>

#include "base/packed.h"

namespace graft {

struct Quantized {
  Tensor packed;  // u8, layout.stored_shape()
  double squared_error = 0, squared_norm = 0;
  double relative_error() const;  // root of the quotient
};

// What the largest magnitude of a block is divided by. Qwix takes 127.5 and 7.5, so that the whole
// range of codes is used; the older rule takes 127 and 7. fp8: 448. NF4: 1, as Qwix writes it, with
// the scale of a block of zeros 1 too; or 0, as bitsandbytes, where it is 0.
double scale_bound(PackedKind kind, bool whole_range = true);

// `values`: [rows, columns], f32, bf16 or f16. On all cores; the result does not depend on how
// many. Raises Error naming `where` if a value is not finite.
Quantized quantize(const Tensor& values, const PackedLayout& layout, double bound,
                   const std::string& where);

// Codes and scales of kNf4Double from magnitudes, as bitsandbytes does it.
struct NestedScales {
  float offset = 0;
  std::vector<float> scales;   // one for each 256
  std::vector<uint8_t> codes;  // indices into dynamic_map()
};
NestedScales quantize_magnitudes(std::span<const float> magnitudes);

}  // namespace graft
