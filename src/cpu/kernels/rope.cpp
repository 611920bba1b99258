// Rotary position embedding: every head of a position turned by the same angles.

#include "ops/rope.h"

#include <cstring>

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/rope.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernels/vector-inl.h"

#ifndef GRAFT_CPU_KERNELS_ROPE_ROWS_
#define GRAFT_CPU_KERNELS_ROPE_ROWS_
namespace graft::cpu {

// `positions` rows [heads, width] of x and y, and [half] of cos and sin.
struct RopeRows {
  const void* x;
  void* y;
  const float *cos, *sin;
  size_t positions, heads, width, half;
  float sign;  // -1: rotate back
  bool interleaved;
};

}  // namespace graft::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

// Pairs (i, i + half). Both members are read before either is written: y may be x.
template <typename T>
HWY_INLINE void rotate_halves(const T* x, T* y, const float* cos, const float* sin,
                              const RopeRows& a) {
  const FloatTag d;
  const auto sign = hn::Set(d, a.sign);
  for_lanes(d, a.half, [&](size_t i, auto part) HWY_ATTR {
    const auto c = load(d, cos + i, part), s = hn::Mul(sign, load(d, sin + i, part));
    const auto first = load(d, x + i, part), second = load(d, x + a.half + i, part);
    store(d, hn::Sub(hn::Mul(first, c), hn::Mul(second, s)), y + i, part);
    store(d, hn::Add(hn::Mul(second, c), hn::Mul(first, s)), y + a.half + i, part);
  });
}

// Pairs (2 i, 2 i + 1).
template <typename T>
HWY_INLINE void rotate_neighbours(const T* x, T* y, const float* cos, const float* sin,
                                  const RopeRows& a) {
  const hn::CappedTag<float, 1> one;
  for (size_t i = 0; i < a.half; ++i) {
    const float first = hn::GetLane(load(one, x + 2 * i));
    const float second = hn::GetLane(load(one, x + 2 * i + 1));
    const float c = cos[i], s = a.sign * sin[i];
    store(one, hn::Set(one, first * c - second * s), y + 2 * i);
    store(one, hn::Set(one, second * c + first * s), y + 2 * i + 1);
  }
}

template <typename T>
void rope_as(const RopeRows& a) {
  for (size_t position = 0; position < a.positions; ++position) {
    const float *cos = a.cos + position * a.half, *sin = a.sin + position * a.half;
    for (size_t head = 0; head < a.heads; ++head) {
      const size_t at = (position * a.heads + head) * a.width;
      const T* x = static_cast<const T*>(a.x) + at;
      T* y = static_cast<T*>(a.y) + at;
      if (a.interleaved) {
        rotate_neighbours(x, y, cos, sin, a);
      } else {
        rotate_halves(x, y, cos, sin, a);
      }
      if (x != y) {
        std::memcpy(y + 2 * a.half, x + 2 * a.half, (a.width - 2 * a.half) * sizeof(T));
      }
    }
  }
}

void rope_rows(const RopeRows& a, bool bf16) { bf16 ? rope_as<BFloat16>(a) : rope_as<float>(a); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace graft::cpu {
namespace {

HWY_EXPORT(rope_rows);

void run_rope(const KernelCall& call) {
  constexpr int64_t kGrain = 16 * 1024;  // elements of x
  const Buffer& x = call.in[0];
  const int64_t positions = x.shape()[0] * x.shape()[1], heads = x.shape()[2], width = x.shape()[3];
  const int64_t half = call.in[1].shape()[2];
  const bool bf16 = x.dtype() == DType::kBF16;
  const int64_t rows = std::max<int64_t>(1, kGrain / std::max<int64_t>(heads * width, 1));
  parallel_pieces(call.threads, positions, rows, [&](int64_t begin, int64_t end) {
    const size_t offset = dtype_bytes(x.dtype(), static_cast<size_t>(begin * heads * width));
    const RopeRows part{.x = x.as<std::byte>() + offset,
                        .y = call.out[0].as<std::byte>() + offset,
                        .cos = call.in[1].as<float>() + begin * half,
                        .sin = call.in[2].as<float>() + begin * half,
                        .positions = static_cast<size_t>(end - begin),
                        .heads = static_cast<size_t>(heads),
                        .width = static_cast<size_t>(width),
                        .half = static_cast<size_t>(half),
                        .sign = call.attributes().flag("inverse") ? -1.0F : 1.0F,
                        .interleaved = call.attributes().flag("interleaved")};
    HWY_DYNAMIC_DISPATCH(rope_rows)(part, bf16);
  });
}

bool supports(const Node&, std::span<const Type> in, std::span<const Type>) {
  return in[0].dtype == DType::kF32 || in[0].dtype == DType::kBF16;
}

}  // namespace

// In place of x alone: a pair is read whole before it is written.
std::span<const KernelEntry> rope_kernels() {
  static const KernelEntry kTable[] = {
      {&kRope, {.run = run_rope, .in_place = true, .in_place_operands = 1}, supports},
  };
  return kTable;
}

}  // namespace graft::cpu
#endif  // HWY_ONCE
