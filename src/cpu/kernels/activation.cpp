// Gated activations, element by element.

#include "ops/activation.h"

#include <cmath>
#include <numbers>

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/activation.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernels/vector-inl.h"

#ifndef GRAFT_CPU_KERNELS_ACTIVATION_RANGE_
#define GRAFT_CPU_KERNELS_ACTIVATION_RANGE_
namespace graft::cpu {

enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu };

// Elements [begin, end) of arrays of one type; dy, d_gate, d_up in the gradient, y forward.
struct GatedRange {
  const void *dy, *gate, *up;
  void *y, *d_gate, *d_up;
  size_t begin, end;
};

}  // namespace graft::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

struct ValueAndDerivative {
  hn::Vec<FloatTag> value, derivative;
};

template <class D>
HWY_INLINE hn::Vec<D> error_function(D d, hn::Vec<D> x) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = std::erf(lanes[i]);
  return hn::Load(d, lanes);
}

template <Activation kActivation, class D>
HWY_INLINE ValueAndDerivative activate(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0F), half = hn::Set(d, 0.5F);
  if constexpr (kActivation == Activation::kSilu) {
    const auto s = logistic(d, x);
    return {hn::Mul(x, s), hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one))};
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const auto scale = hn::Set(d, 0.797884561F), cubic = hn::Set(d, 0.044715F);  // sqrt(2 / pi)
    const auto square = hn::Mul(x, x);
    const auto t = tanh(d, hn::Mul(hn::Mul(scale, x), hn::MulAdd(cubic, square, one)));
    const auto slope = hn::Mul(scale, hn::MulAdd(hn::Set(d, 3 * 0.044715F), square, one));
    const auto cumulative = hn::Mul(half, hn::Add(one, t));
    const auto bend = hn::Mul(hn::Mul(half, x), hn::Mul(hn::NegMulAdd(t, t, one), slope));
    return {hn::Mul(x, cumulative), hn::Add(cumulative, bend)};
  } else {
    const auto cumulative =
        hn::Mul(half, hn::Add(one, error_function(d, hn::Mul(x, hn::Set(d, 0.707106781F)))));
    const auto density = hn::Mul(exp(d, hn::Mul(hn::Mul(hn::Set(d, -0.5F), x), x)),
                                 hn::Set(d, 0.398942280F));  // 1 / sqrt(2 pi)
    return {hn::Mul(x, cumulative), hn::MulAdd(x, density, cumulative)};
  }
}

template <Activation kActivation, typename T>
void gated_as(const GatedRange& range) {
  const FloatTag d;
  const T* gate = static_cast<const T*>(range.gate) + range.begin;
  const T* up = static_cast<const T*>(range.up) + range.begin;
  T* y = static_cast<T*>(range.y) + range.begin;
  for_lanes(d, range.end - range.begin, [&](size_t i, auto part) HWY_ATTR {
    const auto act = activate<kActivation>(d, load(d, gate + i, part));
    store(d, hn::Mul(act.value, load(d, up + i, part)), y + i, part);
  });
}

template <Activation kActivation, typename T>
void gated_grad_as(const GatedRange& range) {
  const FloatTag d;
  const T* dy = static_cast<const T*>(range.dy) + range.begin;
  const T* gate = static_cast<const T*>(range.gate) + range.begin;
  const T* up = static_cast<const T*>(range.up) + range.begin;
  T* d_gate = static_cast<T*>(range.d_gate) + range.begin;
  T* d_up = static_cast<T*>(range.d_up) + range.begin;
  for_lanes(d, range.end - range.begin, [&](size_t i, auto part) HWY_ATTR {
    const auto cotangent = load(d, dy + i, part), u = load(d, up + i, part);
    const auto act = activate<kActivation>(d, load(d, gate + i, part));
    store(d, hn::Mul(hn::Mul(cotangent, u), act.derivative), d_gate + i, part);
    store(d, hn::Mul(cotangent, act.value), d_up + i, part);
  });
}

template <Activation kActivation>
void gated_of(const GatedRange& range, bool bf16, bool gradient) {
  if (gradient) {
    bf16 ? gated_grad_as<kActivation, BFloat16>(range) : gated_grad_as<kActivation, float>(range);
  } else {
    bf16 ? gated_as<kActivation, BFloat16>(range) : gated_as<kActivation, float>(range);
  }
}

void gated_range(const GatedRange& range, Activation activation, bool bf16, bool gradient) {
  switch (activation) {
    case Activation::kSilu: return gated_of<Activation::kSilu>(range, bf16, gradient);
    case Activation::kGeluTanh: return gated_of<Activation::kGeluTanh>(range, bf16, gradient);
    case Activation::kGelu: return gated_of<Activation::kGelu>(range, bf16, gradient);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace graft::cpu {
namespace {

HWY_EXPORT(gated_range);

constexpr int64_t kGrain = 16 * 1024;

Activation activation_of(const KernelCall& call) {
  const std::string& name = call.attributes().text("activation");
  if (name == "silu") return Activation::kSilu;
  return name == "gelu_tanh" ? Activation::kGeluTanh : Activation::kGelu;
}

void run_ranges(const KernelCall& call, GatedRange range, bool gradient) {
  const Activation activation = activation_of(call);
  const bool bf16 = call.in[0].dtype() == DType::kBF16;
  parallel_pieces(call.threads, call.in[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    GatedRange piece = range;
    piece.begin = static_cast<size_t>(begin);
    piece.end = static_cast<size_t>(end);
    HWY_DYNAMIC_DISPATCH(gated_range)(piece, activation, bf16, gradient);
  });
}

void run_gated_activation(const KernelCall& call) {
  run_ranges(call,
             {.dy = nullptr,
              .gate = call.in[0].data,
              .up = call.in[1].data,
              .y = call.out[0].data,
              .d_gate = nullptr,
              .d_up = nullptr,
              .begin = 0,
              .end = 0},
             false);
}

void run_gated_activation_grad(const KernelCall& call) {
  run_ranges(call,
             {.dy = call.in[0].data,
              .gate = call.in[1].data,
              .up = call.in[2].data,
              .y = nullptr,
              .d_gate = call.out[0].data,
              .d_up = call.out[1].data,
              .begin = 0,
              .end = 0},
             true);
}

bool supports(const Node&, std::span<const Type> in, std::span<const Type>) {
  return in[0].dtype == DType::kF32 || in[0].dtype == DType::kBF16;
}

}  // namespace

std::span<const KernelEntry> activation_kernels() {
  static const KernelEntry kTable[] = {
      {&kGatedActivation, {.run = run_gated_activation, .in_place = true}, supports},
      {&kGatedActivationGrad, {.run = run_gated_activation_grad, .in_place = true}, supports},
  };
  return kTable;
}

}  // namespace graft::cpu
#endif  // HWY_ONCE
