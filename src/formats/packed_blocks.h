#pragma once
// Packed matrices (base/packed.h) to f32: the reference that kernels and decompositions equal to
// the bit.
//
//   std::vector<float> row(layout.columns);
//   expand_packed(layout, tensor.bytes(), 7 * layout.columns, row);   // row 7

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "base/packed.h"

namespace graft {

// Values from `first` on, counted row by row. The data must be layout.bytes() long.
void expand_packed(const PackedLayout& layout, const std::byte* data, int64_t first,
                   std::span<float> values);

// The whole matrix, f32 [rows, columns], on all cores.
Tensor expand_packed(const PackedLayout& layout, const Tensor& packed);

// Raises Error naming `where` if a scale or offset of a block is not finite.
void check_scales(const PackedLayout& layout, const Tensor& packed, const std::string& where);

// f(begin, end) over [0, count), shared out to all cores in neighbouring parts; what one raises is
// raised again. The parts do not depend on what f computes, so f may not care which it gets.
void for_parts(int64_t count, const std::function<void(int64_t, int64_t)>& f);

}  // namespace graft
