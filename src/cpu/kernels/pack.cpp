#include "cpu/kernels/pack.h"

#include "cpu/kernels/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/pack.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

#undef GRAFT_HAS_BLOCKS
#define GRAFT_HAS_BLOCKS (HWY_TARGET != HWY_SCALAR)

#if GRAFT_HAS_BLOCKS
// Block q of the vector: four consecutive elements of row 4 q, rows `stride` apart.
template <class D, typename T>
HWY_INLINE hn::Vec<D> load_blocks(D d, const T* p, size_t stride) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return load(d, p);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, p + hn::Lanes(d) / 2 * stride, stride),
                       load_blocks(half, p, stride));
  }
}

// Four columns of as many rows as a vector has lanes, by 4 x 4 transposes within 128-bit blocks.
template <class D, typename T>
HWY_INLINE void transpose_four(D d, const T* from, size_t stride, float* to, size_t to_stride) {
  const hn::Repartition<double, D> pairs;
  const auto r0 = load_blocks(d, from, stride), r1 = load_blocks(d, from + stride, stride);
  const auto r2 = load_blocks(d, from + 2 * stride, stride);
  const auto r3 = load_blocks(d, from + 3 * stride, stride);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
  store(d, hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), to);
  store(d, hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), to + to_stride);
  store(d, hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), to + 2 * to_stride);
  store(d, hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), to + 3 * to_stride);
}
#endif  // GRAFT_HAS_BLOCKS

template <typename T>
HWY_INLINE float to_float(const T* p) {
  const hn::CappedTag<float, 1> one;
  return hn::GetLane(load(one, p));
}

template <typename T>
void transpose_as(const T* from, size_t stride, size_t rows, size_t columns, float* to,
                  size_t to_stride) {
  size_t row = 0;
#if GRAFT_HAS_BLOCKS
  const size_t whole_columns = columns / 4 * 4;
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  for (; row + lanes <= rows; row += lanes) {
    const T* source = from + row * stride;
    float* target = to + row;
    for (size_t column = 0; column < whole_columns; column += 4) {
      transpose_four(d, source + column, stride, target + column * to_stride, to_stride);
    }
    for (size_t column = whole_columns; column < columns; ++column) {
      for (size_t i = 0; i < lanes; ++i) {
        target[column * to_stride + i] = to_float(source + i * stride + column);
      }
    }
  }
#endif  // GRAFT_HAS_BLOCKS
  for (; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      to[column * to_stride + row] = to_float(from + row * stride + column);
    }
  }
}

void transpose_block(const void* from, bool bf16, size_t stride, size_t rows, size_t columns,
                     float* to, size_t to_stride) {
  if (bf16) {
    transpose_as(static_cast<const BFloat16*>(from), stride, rows, columns, to, to_stride);
  } else {
    transpose_as(static_cast<const float*>(from), stride, rows, columns, to, to_stride);
  }
}

template <typename From, typename To>
void scale_rows_as(const From* from, size_t stride, size_t rows, size_t columns, To* to,
                   size_t to_stride, float scale) {
  const FloatTag d;
  const auto factor = hn::Set(d, scale);
  for (size_t row = 0; row < rows; ++row) {
    const From* source = from + row * stride;
    To* target = to + row * to_stride;
    for_lanes(d, columns, [&](size_t i, auto part) HWY_ATTR {
      store(d, hn::Mul(load(d, source + i, part), factor), target + i, part);
    });
  }
}

void pack_block(const void* from, bool bf16, size_t stride, size_t rows, size_t columns, float* to,
                size_t to_stride, float scale) {
  if (bf16) {
    scale_rows_as(static_cast<const BFloat16*>(from), stride, rows, columns, to, to_stride, scale);
  } else {
    scale_rows_as(static_cast<const float*>(from), stride, rows, columns, to, to_stride, scale);
  }
}

void store_block(const float* from, size_t stride, size_t rows, size_t columns, void* to, bool bf16,
                 size_t to_stride, float scale) {
  if (bf16) {
    scale_rows_as(from, stride, rows, columns, static_cast<BFloat16*>(to), to_stride, scale);
  } else {
    scale_rows_as(from, stride, rows, columns, static_cast<float*>(to), to_stride, scale);
  }
}

template <typename T>
void add_row_as(const T* row, float scale, float* tile, size_t stride, size_t rows,
                size_t columns) {
  const FloatTag d;
  const auto factor = hn::Set(d, scale);
  for (size_t r = 0; r < rows; ++r) {
    float* target = tile + r * stride;
    for_lanes(d, columns, [&](size_t i, auto part) HWY_ATTR {
      const auto sum = hn::MulAdd(factor, load(d, row + i, part), load(d, target + i, part));
      store(d, sum, target + i, part);
    });
  }
}

void add_row(const void* row, bool bf16, float scale, float* tile, size_t stride, size_t rows,
             size_t columns) {
  if (bf16) {
    add_row_as(static_cast<const BFloat16*>(row), scale, tile, stride, rows, columns);
  } else {
    add_row_as(static_cast<const float*>(row), scale, tile, stride, rows, columns);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace graft::cpu {
namespace {

HWY_EXPORT(transpose_block);
HWY_EXPORT(pack_block);
HWY_EXPORT(store_block);
HWY_EXPORT(add_row);

size_t size(int64_t n) { return static_cast<size_t>(n); }

}  // namespace

void pack_transposed(const Rows& from, int64_t rows, int64_t columns, float* tile,
                     int64_t tile_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_block)
  (from.data, !from.is_f32(), size(from.stride), size(rows), size(columns), tile,
   size(tile_stride));
}

void pack_rows(const Rows& from, int64_t rows, int64_t columns, float* tile, int64_t tile_stride,
               float scale) {
  HWY_DYNAMIC_DISPATCH(pack_block)
  (from.data, !from.is_f32(), size(from.stride), size(rows), size(columns), tile, size(tile_stride),
   scale);
}

void store_rows(const float* tile, int64_t tile_stride, int64_t rows, int64_t columns, void* to,
                DType dtype, int64_t to_stride, float scale) {
  HWY_DYNAMIC_DISPATCH(store_block)
  (tile, size(tile_stride), size(rows), size(columns), to, dtype == DType::kBF16, size(to_stride),
   scale);
}

void add_bias(const Rows& bias, float* tile, int64_t tile_stride, int64_t rows, int64_t columns) {
  HWY_DYNAMIC_DISPATCH(add_row)
  (bias.data, !bias.is_f32(), 1.0F, tile, size(tile_stride), size(rows), size(columns));
}

void scale_values(float factor, float* values, int64_t n) {
  store_rows(values, n, 1, n, values, DType::kF32, n, factor);
}

void add_scaled(float factor, const Rows& other, float* values, int64_t n) {
  HWY_DYNAMIC_DISPATCH(add_row)
  (other.data, !other.is_f32(), factor, values, size(n), 1, size(n));
}

void add_values(const float* other, float* values, int64_t n) {
  add_scaled(1.0F, {other, DType::kF32, n}, values, n);
}

}  // namespace graft::cpu
#endif  // HWY_ONCE
