// Kernels of elementwise primitives of one operand. An operand of one element serves for any shape.

#include <cmath>

#include "cpu/kernels/element.h"
#include "cpu/kernels/table.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

// out[i] = f(in[i]). The storage of both may be the same, which `simd` allows and an alias check
// would not.
template <typename In, typename Out, typename F>
void map(const KernelCall& call, F f) {
  const auto* in = call.in[0].as<typename In::Stored>();
  auto* out = call.out[0].as<typename Out::Stored>();
  const bool one = call.in[0].elements() == 1;
  parallel_parts(call.out[0].elements(), call.threads, [&](int64_t begin, int64_t end) {
    if (one) {
      const auto value = f(In::load(in));
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) Out::store(out + i, value);
    } else {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) Out::store(out + i, f(In::load(in + i)));
    }
  });
}

template <typename F>
void map_float(const KernelCall& call, F f) {
  with_float(call.in[0].dtype(), [&](auto element) {
    using E = decltype(element);
    map<E, E>(call, f);
  });
}

template <typename T>
using Unsigned = std::make_unsigned_t<T>;

struct Neg {
  template <typename T>
  T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(x));
    } else {
      return -x;
    }
  }
};

struct Abs {
  template <typename T>
  T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return x < T{0} ? Neg()(x) : x;
    } else {
      return std::abs(x);
    }
  }
};

struct Sign {
  template <typename T>
  T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>((x > T{0}) - (x < T{0}));
    } else {
      return x > 0 ? T{1} : (x < 0 ? T{-1} : x);  // NaN and both zeros are themselves
    }
  }
};

template <typename F>
void run_number(const KernelCall& call) {
  with_number(call.in[0].dtype(), [&](auto element) {
    using E = decltype(element);
    map<E, E>(call, F());
  });
}

void run_not(const KernelCall& call) {
  if (call.in[0].dtype() == DType::kBool) {
    map<Bool, Bool>(call, [](uint8_t x) { return static_cast<uint8_t>(x == 0); });
    return;
  }
  with_integer(call.in[0].dtype(), [&](auto element) {
    using E = decltype(element);
    map<E, E>(call, [](auto x) { return static_cast<decltype(x)>(~x); });
  });
}

void run_is_finite(const KernelCall& call) {
  with_float(call.in[0].dtype(), [&](auto element) {
    map<decltype(element), Bool>(call,
                                 [](auto x) { return static_cast<uint8_t>(std::isfinite(x)); });
  });
}

void run_exp(const KernelCall& call) {
  map_float(call, [](auto x) { return std::exp(x); });
}
void run_log(const KernelCall& call) {
  map_float(call, [](auto x) { return std::log(x); });
}
void run_log1p(const KernelCall& call) {
  map_float(call, [](auto x) { return std::log1p(x); });
}
void run_sqrt(const KernelCall& call) {
  map_float(call, [](auto x) { return std::sqrt(x); });
}
void run_rsqrt(const KernelCall& call) {
  map_float(call, [](auto x) { return 1 / std::sqrt(x); });
}
void run_tanh(const KernelCall& call) {
  map_float(call, [](auto x) { return std::tanh(x); });
}
void run_logistic(const KernelCall& call) {
  map_float(call, [](auto x) { return 1 / (1 + std::exp(-x)); });
}
void run_cos(const KernelCall& call) {
  map_float(call, [](auto x) { return std::cos(x); });
}
void run_sin(const KernelCall& call) {
  map_float(call, [](auto x) { return std::sin(x); });
}
void run_floor(const KernelCall& call) {
  map_float(call, [](auto x) { return std::floor(x); });
}

bool is_float_type(const Node&, std::span<const Type> in, std::span<const Type>) {
  return has_float_element(in[0].dtype);
}
bool is_number(const Node&, std::span<const Type> in, std::span<const Type>) {
  return has_float_element(in[0].dtype) || has_integer_element(in[0].dtype);
}
bool is_integer_or_bool(const Node&, std::span<const Type> in, std::span<const Type>) {
  return in[0].dtype == DType::kBool || has_integer_element(in[0].dtype);
}

}  // namespace

std::span<const KernelEntry> unary_kernels() {
  static const KernelEntry kTable[] = {
      {&kNeg, {.run = run_number<Neg>, .in_place = true}, is_number},
      {&kAbs, {.run = run_number<Abs>, .in_place = true}, is_number},
      {&kSign, {.run = run_number<Sign>, .in_place = true}, is_number},
      {&kNot, {.run = run_not, .in_place = true}, is_integer_or_bool},
      {&kIsFinite, {.run = run_is_finite}, is_float_type},
      {&kExp, {.run = run_exp, .in_place = true}, is_float_type},
      {&kLog, {.run = run_log, .in_place = true}, is_float_type},
      {&kLog1p, {.run = run_log1p, .in_place = true}, is_float_type},
      {&kSqrt, {.run = run_sqrt, .in_place = true}, is_float_type},
      {&kRsqrt, {.run = run_rsqrt, .in_place = true}, is_float_type},
      {&kTanh, {.run = run_tanh, .in_place = true}, is_float_type},
      {&kLogistic, {.run = run_logistic, .in_place = true}, is_float_type},
      {&kCos, {.run = run_cos, .in_place = true}, is_float_type},
      {&kSin, {.run = run_sin, .in_place = true}, is_float_type},
      {&kFloor, {.run = run_floor, .in_place = true}, is_float_type},
  };
  return kTable;
}

}  // namespace graft::cpu
