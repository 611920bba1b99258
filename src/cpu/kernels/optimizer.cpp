// AdamW in one pass over its four arrays, and sums of squares over fixed chunks.

#include "ops/optimizer.h"

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/optimizer.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernels/vector-inl.h"

#ifndef GRAFT_CPU_KERNELS_ADAMW_RANGE_
#define GRAFT_CPU_KERNELS_ADAMW_RANGE_
namespace graft::cpu {

struct AdamWFactors {
  float beta1, rest1, beta2, rest2, epsilon;  // rest: 1 - beta
  float clip, rate, decay;                    // decay: rate * weight_decay
  float inverse_c1, inverse_c2;
};

// Elements [0, count). Results may be the operands.
struct AdamWRange {
  const float *p, *m, *v, *gradient;
  float *next_p, *next_m, *next_v;
  size_t count;
};

}  // namespace graft::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

void adamw_range(const AdamWRange& a, const AdamWFactors& f) {
  const FloatTag d;
  const auto clip = hn::Set(d, f.clip), rate = hn::Set(d, f.rate), decay = hn::Set(d, f.decay);
  const auto beta1 = hn::Set(d, f.beta1), rest1 = hn::Set(d, f.rest1);
  const auto beta2 = hn::Set(d, f.beta2), rest2 = hn::Set(d, f.rest2);
  const auto inverse_c1 = hn::Set(d, f.inverse_c1), inverse_c2 = hn::Set(d, f.inverse_c2);
  const auto epsilon = hn::Set(d, f.epsilon);
  for_lanes(d, a.count, [&](size_t i, auto part) HWY_ATTR {
    const auto p = load(d, a.p + i, part);
    const auto g = hn::Mul(load(d, a.gradient + i, part), clip);
    const auto m = hn::MulAdd(load(d, a.m + i, part), beta1, hn::Mul(g, rest1));
    const auto v = hn::MulAdd(load(d, a.v + i, part), beta2, hn::Mul(hn::Mul(g, g), rest2));
    const auto root = hn::Add(hn::Sqrt(hn::Mul(v, inverse_c2)), epsilon);
    const auto decayed = hn::NegMulAdd(decay, p, p);
    const auto step = hn::Div(hn::Mul(rate, hn::Mul(m, inverse_c1)), root);
    store(d, hn::Sub(decayed, step), a.next_p + i, part);
    store(d, m, a.next_m + i, part);
    store(d, v, a.next_v + i, part);
  });
}

// The step that is not taken: bit for bit what was there, wherever each result is to stand.
void adamw_keep(const AdamWRange& a) {
  const FloatTag d;
  for_lanes(d, a.count, [&](size_t i, auto part) HWY_ATTR {
    const auto p = load(d, a.p + i, part), m = load(d, a.m + i, part), v = load(d, a.v + i, part);
    store(d, p, a.next_p + i, part);
    store(d, m, a.next_m + i, part);
    store(d, v, a.next_v + i, part);
  });
}

template <typename T>
float sum_squares_as(const T* x, size_t count) {
  const FloatTag d;
  return sum_over(d, count, [&](size_t i, auto part) HWY_ATTR {
    const auto v = load(d, x + i, part);
    return hn::Mul(v, v);
  });
}

float sum_squares_chunk(const void* x, bool bf16, size_t count) {
  return bf16 ? sum_squares_as(static_cast<const BFloat16*>(x), count)
              : sum_squares_as(static_cast<const float*>(x), count);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace graft::cpu {
namespace {

HWY_EXPORT(adamw_range);
HWY_EXPORT(adamw_keep);
HWY_EXPORT(sum_squares_chunk);

enum AdamWOperand : uint8_t { kP, kM, kV, kGradient, kClip, kLearningRate, kC1, kC2, kFinite };

void run_adamw(const KernelCall& call) {
  constexpr int64_t kGrain = 16 * 1024;
  const auto in = call.in;
  const auto scalar = [&](AdamWOperand operand) { return *in[operand].as<const float>(); };
  const bool finite = *in[kFinite].as<const uint8_t>() != 0;
  const Attributes& attributes = call.attributes();
  const double beta1 = attributes.f64("beta1"), beta2 = attributes.f64("beta2");
  const AdamWFactors factors{
      .beta1 = static_cast<float>(beta1),
      .rest1 = static_cast<float>(1 - beta1),
      .beta2 = static_cast<float>(beta2),
      .rest2 = static_cast<float>(1 - beta2),
      .epsilon = static_cast<float>(attributes.f64("epsilon")),
      .clip = scalar(kClip),
      .rate = scalar(kLearningRate),
      .decay = scalar(kLearningRate) * static_cast<float>(attributes.f64("weight_decay")),
      .inverse_c1 = 1.0F / scalar(kC1),
      .inverse_c2 = 1.0F / scalar(kC2)};
  parallel_pieces(call.threads, in[kP].elements(), kGrain, [&](int64_t begin, int64_t end) {
    const AdamWRange range{.p = in[kP].as<float>() + begin,
                           .m = in[kM].as<float>() + begin,
                           .v = in[kV].as<float>() + begin,
                           .gradient = in[kGradient].as<float>() + begin,
                           .next_p = call.out[0].as<float>() + begin,
                           .next_m = call.out[1].as<float>() + begin,
                           .next_v = call.out[2].as<float>() + begin,
                           .count = static_cast<size_t>(end - begin)};
    if (finite) {
      HWY_DYNAMIC_DISPATCH(adamw_range)(range, factors);
    } else {
      HWY_DYNAMIC_DISPATCH(adamw_keep)(range);
    }
  });
}

constexpr int64_t kChunk = 1024;

// Chunks are summed in f32, their sums in double.
void run_sum_squares(const KernelCall& call) {
  const Buffer& x = call.in[0];
  const bool bf16 = x.dtype() == DType::kBF16;
  const int64_t chunks = ceil_divide(x.elements(), kChunk);
  auto* partial = reinterpret_cast<float*>(call.scratch.data());
  constexpr int64_t kChunksAtOnce = 32;
  parallel_pieces(call.threads, chunks, kChunksAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kChunk, count = std::min(kChunk, x.elements() - first);
      const size_t offset = dtype_bytes(x.dtype(), static_cast<size_t>(first));
      partial[chunk] = HWY_DYNAMIC_DISPATCH(sum_squares_chunk)(x.as<const std::byte>() + offset,
                                                               bf16, static_cast<size_t>(count));
    }
  });
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += static_cast<double>(partial[chunk]);
  *call.out[0].as<float>() = static_cast<float>(sum);
}

size_t sum_squares_scratch(const Node&, std::span<const Type> in, std::span<const Type>, int) {
  ScratchLayout layout;
  layout.add(ceil_divide(in[0].elements(), kChunk));
  return layout.bytes();
}

bool supports_adamw(const Node&, std::span<const Type> in, std::span<const Type>) {
  return in[kP].dtype == DType::kF32;
}
bool supports_sum_squares(const Node&, std::span<const Type> in, std::span<const Type>) {
  return in[0].dtype == DType::kF32 || in[0].dtype == DType::kBF16;
}

}  // namespace

// AdamW in place: everything at an index is read before anything is written there.
std::span<const KernelEntry> optimizer_kernels() {
  static const KernelEntry kTable[] = {
      {&kAdamW, {.run = run_adamw, .in_place = true, .in_place_operands = 0b1111}, supports_adamw},
      {&kSumSquares,
       {.run = run_sum_squares, .scratch_bytes = sum_squares_scratch},
       supports_sum_squares},
  };
  return kTable;
}

}  // namespace graft::cpu
#endif  // HWY_ONCE
