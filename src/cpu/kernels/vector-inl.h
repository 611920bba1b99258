// Vector helpers shared by the kernels, compiled once for each instruction set: loads and stores of
// f32 and bf16 as f32, loops with a partial last vector, exp and what is made of it. To be included
// after hwy/highway.h inside a foreach_target file.
//
//   const D d;
//   for_lanes(d, n, [&](size_t i, auto part) { store(d, exp(d, load(d, x + i, part)), y + i, part);
//   });

#if defined(GRAFT_CPU_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRAFT_CPU_KERNELS_VECTOR_INL_H_
#undef GRAFT_CPU_KERNELS_VECTOR_INL_H_
#else
#define GRAFT_CPU_KERNELS_VECTOR_INL_H_
#endif

#include <cstddef>
#include <cstring>

#include "cpu/kernels/simd.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;

// How much of a vector is there: all of it, or its first `count` lanes.
struct Whole {};
struct First {
  size_t count;
};

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* p, Whole = {}) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const BFloat16* p, Whole = {}) {
  const hn::Rebind<uint16_t, D> narrow;
  const hn::Rebind<uint32_t, D> wide;
  const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

// Lanes beyond the part are 0.
template <class D, typename T>
HWY_INLINE hn::Vec<D> load(D d, const T* p, First part) {
  HWY_ALIGN T lanes[hn::MaxLanes(D())] = {};
  std::memcpy(lanes, p, part.count * sizeof(T));
  return load(d, lanes);
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, float* p, Whole = {}) {
  hn::StoreU(v, d, p);
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// These mask in hardware and touch nothing outside the part.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* p, First part) {
  return hn::MaskedLoad(hn::FirstN(d, part.count), d, p);
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, float* p, First part) {
  hn::BlendedStore(v, hn::FirstN(d, part.count), d, p);
}
#endif

// The bits of v as bf16, in 32-bit lanes: rounded to nearest, ties to even; a NaN stays one (as
// f32_to_bf16 of base/dtype.h).
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint32_t, D>> bf16_bits(D, hn::Vec<D> v) {
  const hn::Rebind<uint32_t, D> wide;
  const auto bits = hn::BitCast(wide, v);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(wide, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(wide, 0x7FFF))));
  const auto nan = hn::RebindMask(wide, hn::IsNaN(v));
  return hn::IfThenElse(nan, hn::Or(high, hn::Set(wide, 0x40)), rounded);
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, BFloat16* p, Whole = {}) {
  const hn::Rebind<int32_t, D> wide;
  const hn::Rebind<uint16_t, D> narrow;
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(wide, bf16_bits(d, v))), narrow,
             reinterpret_cast<uint16_t*>(p));
}

// v as it would be read back after a store as T.
template <typename T, class D>
HWY_INLINE hn::Vec<D> rounded_to(D d, hn::Vec<D> v) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return v;
  } else {
    return hn::BitCast(d, hn::ShiftLeft<16>(bf16_bits(d, v)));
  }
}

template <class D, typename T>
HWY_INLINE void store(D d, hn::Vec<D> v, T* p, First part) {
  HWY_ALIGN T lanes[hn::MaxLanes(D())];
  store(d, v, lanes);
  std::memcpy(p, lanes, part.count * sizeof(T));
}

// body(i, Whole or First) over [0, n).
template <class D, class Body>
HWY_INLINE void for_lanes(D d, size_t n, const Body& body) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Whole{});
  if (i < n) body(i, First{n - i});
}

// The lanes of the part, `other` elsewhere.
template <class D>
HWY_INLINE hn::Vec<D> only(D, hn::Vec<D> v, Whole, hn::Vec<D>) {
  return v;
}
template <class D>
HWY_INLINE hn::Vec<D> only(D d, hn::Vec<D> v, First part, hn::Vec<D> other) {
  return hn::IfThenElse(hn::FirstN(d, part.count), v, other);
}

template <class D>
HWY_INLINE float sum_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

// The sum over [0, n) of term(i, part), whose lanes beyond the part must be 0: in four running
// vectors, so that additions need not wait for each other.
template <class D, class Term>
HWY_INLINE float sum_over(D d, size_t n, const Term& term) {
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, term(i, Whole{}));
    s1 = hn::Add(s1, term(i + lanes, Whole{}));
    s2 = hn::Add(s2, term(i + 2 * lanes, Whole{}));
    s3 = hn::Add(s3, term(i + 3 * lanes, Whole{}));
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::Add(s0, term(i, Whole{}));
  if (i < n) s1 = hn::Add(s1, term(i, First{n - i}));
  return sum_lanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

// exp(x) to about one unit in the last place; 0 below -87.3, saturating at 2.2e38 (88.3) above. A
// NaN stays a NaN: a fault in a logit must reach the loss, where the step's guard sees it.
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  const hn::Rebind<int32_t, D> di;
  const auto lowest = hn::Set(d, -87.3F);
  // Max and Min give their second operand where one is a NaN.
  const auto clamped = hn::Min(hn::Set(d, 88.3F), hn::Max(lowest, x));
  const auto n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504F)));
  // ln 2 in two parts, the first exact in few bits: x - n ln 2 loses nothing.
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693145752F), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6F), r);
  // Taylor's series: the next term is below 6e-9 for |r| <= ln 2 / 2.
  auto p = hn::MulAdd(hn::Set(d, 1.0F / 5040), r, hn::Set(d, 1.0F / 720));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  const auto result = hn::Mul(p, hn::BitCast(d, exponent));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), result);
}

// 1 / (1 + exp(-x)).
template <class D>
HWY_INLINE hn::Vec<D> logistic(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, exp(d, hn::Neg(x))));
}

// tanh(x). Near 0, where 1 - 2 / (exp(2x) + 1) would cancel, Taylor's series to x^11; they meet at
// 0.35 with relative errors of about 3e-7.
template <class D>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0F);
  const auto magnitude = hn::Abs(x);
  const auto e = exp(d, hn::Add(magnitude, magnitude));
  const auto far = hn::Sub(one, hn::Div(hn::Set(d, 2.0F), hn::Add(e, one)));
  const auto s = hn::Mul(x, x);
  auto p = hn::MulAdd(hn::Set(d, -1382.0F / 155925), s, hn::Set(d, 62.0F / 2835));
  p = hn::MulAdd(p, s, hn::Set(d, -17.0F / 315));
  p = hn::MulAdd(p, s, hn::Set(d, 2.0F / 15));
  p = hn::MulAdd(p, s, hn::Set(d, -1.0F / 3));
  const auto near = hn::MulAdd(hn::Mul(p, s), x, x);
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.35F)), near, hn::CopySign(far, x));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GRAFT_CPU_KERNELS_VECTOR_INL_H_
