#include "cpu/kernels/loss_vector.h"

#include <cmath>
#include <limits>

#include "cpu/kernels/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/loss_vector.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

constexpr float kLeast = -std::numeric_limits<float>::infinity();

// body(column, Whole or First, how many vectors as an integral constant): four at a time while
// there are, so that a cache line's neighbours are read together.
template <size_t kCount>
struct Vectors {
  static constexpr size_t count = kCount;
};
template <class Body>
HWY_INLINE void for_columns(size_t rows, const Body& body) {
  const size_t lanes = hn::Lanes(FloatTag());
  size_t i = 0;
  for (; i + 4 * lanes <= rows; i += 4 * lanes) body(i, Whole{}, Vectors<4>());
  for (; i + lanes <= rows; i += lanes) body(i, Whole{}, Vectors<1>());
  if (i < rows) body(i, First{rows - i}, Vectors<1>());
}

// Caps the tile in place where asked, and raises the rows' maxima.
void raise_maxima(const LossRows& state, float softcap, size_t count, float* tile, size_t stride) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto cap = hn::Set(d, softcap),
             inverse = hn::Set(d, softcap == 0.0F ? 0.0F : 1.0F / softcap);
  for_columns(state.rows, [&](size_t column, auto part, auto vectors) HWY_ATTR {
    constexpr size_t kVectors = decltype(vectors)::count;
    hn::Vec<FloatTag> greatest[kVectors];
    for (size_t k = 0; k < kVectors; ++k) greatest[k] = hn::Set(d, kLeast);
    for (size_t v = 0; v < count; ++v) {
      float* at = tile + v * stride + column;
      for (size_t k = 0; k < kVectors; ++k) {
        auto logit = load(d, at + k * lanes, part);
        if (softcap != 0.0F) {
          logit = hn::Mul(cap, tanh(d, hn::Mul(logit, inverse)));
          store(d, logit, at + k * lanes, part);
        }
        greatest[k] = hn::Max(logit, greatest[k]);
      }
    }
    for (size_t k = 0; k < kVectors; ++k) {
      const size_t i = column + k * lanes;
      const auto before = load(d, state.maximum + i, part);
      const auto next = hn::Max(greatest[k], before);
      // -inf - -inf is a NaN; there is nothing to rescale then.
      const auto shrink = exp(d, hn::Sub(before, next));
      const auto same = hn::Eq(before, next);
      store(d, hn::IfThenElse(same, hn::Set(d, 1.0F), shrink), state.rescale + i, part);
      store(d, next, state.maximum + i, part);
    }
  });
}

void exponentiate(const LossRows& state, float softcap, size_t count, float* tile, size_t stride) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(d, 1.0F), lowest = hn::Set(d, -1.0F);
  const auto inverse = hn::Set(d, softcap == 0.0F ? 0.0F : 1.0F / softcap);
  for_columns(state.rows, [&](size_t column, auto part, auto vectors) HWY_ATTR {
    constexpr size_t kVectors = decltype(vectors)::count;
    hn::Vec<FloatTag> maximum[kVectors], sum[kVectors];
    for (size_t k = 0; k < kVectors; ++k) {
      maximum[k] = load(d, state.maximum + column + k * lanes, part);
      sum[k] = hn::Zero(d);
    }
    for (size_t v = 0; v < count; ++v) {
      float* at = tile + v * stride + column;
      for (size_t k = 0; k < kVectors; ++k) {
        const auto logit = load(d, at + k * lanes, part);
        auto e = exp(d, hn::Sub(logit, maximum[k]));
        sum[k] = hn::Add(sum[k], e);
        if (softcap != 0.0F) {
          // The target's -inf as -1, a slope of 0; a NaN, as second operand, stays.
          const auto t = hn::Max(lowest, hn::Mul(logit, inverse));
          e = hn::Mul(e, hn::NegMulAdd(t, t, one));
        }
        store(d, e, at + k * lanes, part);
      }
    }
    for (size_t k = 0; k < kVectors; ++k) {
      const size_t i = column + k * lanes;
      const auto before = load(d, state.others + i, part);
      const auto others = hn::MulAdd(before, load(d, state.rescale + i, part), sum[k]);
      store(d, others, state.others + i, part);
    }
  });
}

void tile_softmax(const LossRows& state, float softcap, int32_t first, size_t count, float* tile,
                  size_t stride) {
  raise_maxima(state, softcap, count, tile, stride);
  for (size_t r = 0; r < state.rows; ++r) {
    const int64_t v = static_cast<int64_t>(state.targets[r]) - first;
    if (v < 0 || v >= static_cast<int64_t>(count)) continue;
    float& logit = tile[static_cast<size_t>(v) * stride + r];
    state.target_logit[r] = logit;
    logit = kLeast;
  }
  exponentiate(state, softcap, count, tile, stride);
}

void tile_scale_columns(const float* factor, float* tile, size_t stride, size_t count,
                        size_t rows) {
  const FloatTag d;
  for (size_t v = 0; v < count; ++v) {
    float* at = tile + v * stride;
    for_lanes(d, rows, [&](size_t i, auto part) HWY_ATTR {
      store(d, hn::Mul(load(d, at + i, part), load(d, factor + i, part)), at + i, part);
    });
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace graft::cpu {
namespace {

HWY_EXPORT(tile_softmax);
HWY_EXPORT(tile_scale_columns);

}  // namespace

void loss_tile(const LossRows& state, float softcap, int32_t first, size_t count, float* tile,
               size_t stride) {
  HWY_DYNAMIC_DISPATCH(tile_softmax)(state, softcap, first, count, tile, stride);
}

void scale_columns(const float* factor, float* tile, size_t stride, size_t count, size_t rows) {
  HWY_DYNAMIC_DISPATCH(tile_scale_columns)(factor, tile, stride, count, rows);
}

}  // namespace graft::cpu
#endif  // HWY_ONCE
