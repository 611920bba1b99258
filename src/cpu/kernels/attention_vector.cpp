#include "cpu/kernels/attention_vector.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kernels/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/attention_vector.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// What one row sees: keys [begin, end), and of these its own segment's where segments differ.
struct RowMask {
  size_t begin, end;
  const int32_t* key_segments;  // of keys begin, begin + 1, ...
  int32_t segment;

  RowMask(const ScoreMask& mask, size_t row) {
    const size_t position = row % mask.positions;
    const auto keys = static_cast<int64_t>(mask.keys);
    const int64_t here = mask.first_position + static_cast<int64_t>(position);
    end = mask.ranged ? static_cast<size_t>(std::clamp<int64_t>(here + 1, 0, keys)) : mask.keys;
    begin = 0;
    if (mask.ranged) {
      const int64_t first = std::clamp<int64_t>(here - mask.window + 1, 0, keys);
      begin = std::min(static_cast<size_t>(first), end);
    }
    key_segments = mask.key_segments == nullptr ? nullptr : mask.key_segments + begin;
    segment = key_segments == nullptr ? 0 : mask.query_segments[position];
  }
  size_t count() const { return end - begin; }

  // What is not seen has the weight 0.
  void clear_rest(size_t keys, float* row) const {
    std::fill(row, row + begin, 0.0F);
    std::fill(row + end, row + keys, 0.0F);
  }
};

HWY_INLINE hn::Vec<hn::ScalableTag<int32_t>> load_segments(const int32_t* p, Whole) {
  return hn::LoadU(hn::ScalableTag<int32_t>(), p);
}
HWY_INLINE hn::Vec<hn::ScalableTag<int32_t>> load_segments(const int32_t* p, First part) {
  HWY_ALIGN int32_t lanes[hn::MaxLanes(hn::ScalableTag<int32_t>())] = {};
  std::memcpy(lanes, p, part.count * sizeof(int32_t));
  return hn::Load(hn::ScalableTag<int32_t>(), lanes);
}

// v where keys begin + i, ... are of the row's segment, `hidden` elsewhere.
template <class Part>
HWY_INLINE hn::Vec<FloatTag> masked(const RowMask& row, size_t i, Part part, hn::Vec<FloatTag> v,
                                    hn::Vec<FloatTag> hidden) {
  const FloatTag d;
  if (row.key_segments == nullptr) return v;
  const hn::ScalableTag<int32_t> di;
  const auto seen = hn::Eq(load_segments(row.key_segments + i, part), hn::Set(di, row.segment));
  return hn::IfThenElse(hn::RebindMask(d, seen), v, hidden);
}

struct Cap {
  float softcap;
  // score -> softcap tanh(score / softcap), and that tanh.
  HWY_INLINE hn::Vec<FloatTag> tangent(hn::Vec<FloatTag> score) const {
    const FloatTag d;
    return tanh(d, hn::Mul(score, hn::Set(d, 1.0F / softcap)));
  }
};

// Caps and masks what a row sees in place, where needed; returns its maximum.
float prepare_row(const RowMask& row, float softcap, float* scores) {
  const FloatTag d;
  const auto nothing = hn::Set(d, kNothing);
  auto greatest = nothing;
  const bool plain = row.key_segments == nullptr && softcap == 0.0F;
  for_lanes(d, row.count(), [&](size_t i, auto part) HWY_ATTR {
    auto score = load(d, scores + i, part);
    if (!plain) {
      if (softcap != 0.0F) score = hn::Mul(hn::Set(d, softcap), Cap{softcap}.tangent(score));
      score = masked(row, i, part, score, nothing);
      store(d, score, scores + i, part);
    }
    greatest = hn::Max(only(d, score, part, nothing), greatest);
  });
  return hn::GetLane(hn::MaxOfLanes(d, greatest));
}

float exponentiate_row(float maximum, size_t count, float* scores) {
  const FloatTag d;
  const auto shift = hn::Set(d, maximum);
  auto sum = hn::Zero(d);
  for_lanes(d, count, [&](size_t i, auto part) HWY_ATTR {
    const auto e = exp(d, hn::Sub(load(d, scores + i, part), shift));
    store(d, e, scores + i, part);
    sum = hn::Add(sum, only(d, e, part, hn::Zero(d)));
  });
  return sum_lanes(d, sum);
}

void scale_row(float factor, size_t width, float* row) {
  const FloatTag d;
  const auto f = hn::Set(d, factor);
  for_lanes(d, width, [&](size_t i, auto part) HWY_ATTR {
    store(d, hn::Mul(load(d, row + i, part), f), row + i, part);
  });
}

float softmax_rows(const ScoreMask& mask, float softcap, float* scores, size_t stride,
                   const SoftmaxRows& state) {
  float greatest = kNothing;
  for (size_t r = 0; r < state.rows; ++r) {
    float* row = scores + r * stride;
    const RowMask seen(mask, r);
    const float block = prepare_row(seen, softcap, row + seen.begin);
    greatest = std::max(greatest, block);
    const float before = state.maximum[r], next = std::max(before, block);
    // A row that has seen no key yet: 0 in place of -inf keeps exp(-inf - x) at 0 and a NaN a NaN.
    const float safe = next == kNothing ? 0.0F : next;
    const float sum = exponentiate_row(safe, seen.count(), row + seen.begin);
    seen.clear_rest(mask.keys, row);
    const float rescale = before == next ? 1.0F : std::exp(before - safe);
    state.maximum[r] = next;
    state.denominator[r] = state.denominator[r] * rescale + sum;
    if (state.out != nullptr && rescale != 1.0F) {
      scale_row(rescale, state.out_width, state.out + r * state.out_width);
    }
  }
  return greatest;
}

template <typename T>
void write_rows_as(const SoftmaxRows& state, size_t first, size_t count, T* to, size_t stride) {
  const FloatTag d;
  for (size_t i = 0; i < count; ++i) {
    const float denominator = state.denominator[first + i];
    const auto factor = hn::Set(d, denominator == 0.0F ? 0.0F : 1.0F / denominator);
    const float* from = state.out + (first + i) * state.out_width;
    for_lanes(d, state.out_width, [&](size_t j, auto part) HWY_ATTR {
      store(d, hn::Mul(load(d, from + j, part), factor), to + i * stride + j, part);
    });
  }
}

void write_rows(const SoftmaxRows& state, size_t first, size_t count, void* to, bool bf16,
                size_t stride) {
  if (bf16) {
    write_rows_as(state, first, count, static_cast<BFloat16*>(to), stride);
  } else {
    write_rows_as(state, first, count, static_cast<float*>(to), stride);
  }
}

void softmax_rows_grad(const ScoreMask& mask, float softcap, float* scores, float* d_weights,
                       size_t stride, size_t rows, const float* lse, const float* delta) {
  const FloatTag d;
  const auto zero = hn::Zero(d);
  for (size_t r = 0; r < rows; ++r) {
    const RowMask row(mask, r);
    float *s = scores + r * stride + row.begin, *w = d_weights + r * stride + row.begin;
    const auto shift = hn::Set(d, lse[r] == kNothing ? 0.0F : lse[r]), less = hn::Set(d, delta[r]);
    for_lanes(d, row.count(), [&](size_t i, auto part) HWY_ATTR {
      auto score = load(d, s + i, part);
      auto slope = hn::Set(d, 1.0F);
      if (softcap != 0.0F) {
        const auto t = Cap{softcap}.tangent(score);
        slope = hn::NegMulAdd(t, t, slope);
        score = hn::Mul(hn::Set(d, softcap), t);
      }
      const auto p = exp(d, hn::Sub(score, shift));
      const auto gradient = hn::Mul(hn::Mul(p, hn::Sub(load(d, w + i, part), less)), slope);
      store(d, masked(row, i, part, p, zero), s + i, part);
      store(d, masked(row, i, part, gradient, zero), w + i, part);
    });
    row.clear_rest(mask.keys, scores + r * stride);
    row.clear_rest(mask.keys, d_weights + r * stride);
  }
}

template <typename T>
void row_products_as(const float* a, const T* b, size_t stride, size_t rows, size_t width,
                     float* result) {
  const FloatTag d;
  for (size_t r = 0; r < rows; ++r) {
    const float* left = a + r * width;
    const T* right = b + r * stride;
    result[r] = sum_over(d, width, [&](size_t i, auto part) HWY_ATTR {
      return hn::Mul(load(d, left + i, part), load(d, right + i, part));
    });
  }
}

void row_products_of(const float* a, const void* b, bool bf16, size_t stride, size_t rows,
                     size_t width, float* result) {
  if (bf16) {
    row_products_as(a, static_cast<const BFloat16*>(b), stride, rows, width, result);
  } else {
    row_products_as(a, static_cast<const float*>(b), stride, rows, width, result);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace graft::cpu {
namespace {

HWY_EXPORT(softmax_rows);
HWY_EXPORT(softmax_rows_grad);
HWY_EXPORT(write_rows);
HWY_EXPORT(row_products_of);

}  // namespace

float softmax_block(const ScoreMask& mask, float softcap, float* scores, size_t stride,
                    const SoftmaxRows& state) {
  return HWY_DYNAMIC_DISPATCH(softmax_rows)(mask, softcap, scores, stride, state);
}

void write_softmax_rows(const SoftmaxRows& state, size_t first, size_t count, void* to, DType dtype,
                        size_t stride) {
  HWY_DYNAMIC_DISPATCH(write_rows)(state, first, count, to, dtype == DType::kBF16, stride);
}

void softmax_block_grad(const ScoreMask& mask, float softcap, float* scores, float* d_weights,
                        size_t stride, size_t rows, const float* lse, const float* delta) {
  HWY_DYNAMIC_DISPATCH(softmax_rows_grad)
  (mask, softcap, scores, d_weights, stride, rows, lse, delta);
}

void row_products(const float* a, const Rows& b, int64_t rows, int64_t width, float* result) {
  HWY_DYNAMIC_DISPATCH(row_products_of)
  (a, b.data, !b.is_f32(), static_cast<size_t>(b.stride), static_cast<size_t>(rows),
   static_cast<size_t>(width), result);
}

}  // namespace graft::cpu
#endif  // HWY_ONCE
