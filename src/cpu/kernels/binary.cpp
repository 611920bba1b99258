// Kernels of elementwise arithmetic, bit operations and shifts. An operand of one element serves
// for any shape. Integers wrap modulo 2^bits.

#include <cmath>
#include <limits>

#include "cpu/kernels/element.h"
#include "cpu/kernels/table.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

// out[i] = f(a[i], b[i]). The result may be stored over either operand.
template <typename E, typename F>
void map(const KernelCall& call, F f) {
  const auto* a = call.in[0].as<typename E::Stored>();
  const auto* b = call.in[1].as<typename E::Stored>();
  auto* out = call.out[0].as<typename E::Stored>();
  const int64_t n = call.out[0].elements();
  const bool one_a = call.in[0].elements() == 1, one_b = call.in[1].elements() == 1;
  // Read before anything is written: with n = 1 the result may lie over it.
  const auto first_a = n > 0 && one_a ? E::load(a) : typename E::Computed{};
  const auto first_b = n > 0 && one_b ? E::load(b) : typename E::Computed{};
  parallel_parts(n, call.threads, [&](int64_t begin, int64_t end) {
    if (one_a && one_b) {
      const auto value = f(first_a, first_b);
      for (int64_t i = begin; i < end; ++i) E::store(out + i, value);
    } else if (one_a) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) E::store(out + i, f(first_a, E::load(b + i)));
    } else if (one_b) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) E::store(out + i, f(E::load(a + i), first_b));
    } else {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) E::store(out + i, f(E::load(a + i), E::load(b + i)));
    }
  });
}

// Signed overflow is undefined, and small unsigned types widen to int: all arithmetic in unsigned
// 64 bits.
template <typename T, typename F>
T modular(T a, T b, F f) {
  return static_cast<T>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
}

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return modular(a, b, [](uint64_t x, uint64_t y) { return x + y; });
    } else {
      return a + b;
    }
  }
};

struct Sub {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return modular(a, b, [](uint64_t x, uint64_t y) { return x - y; });
    } else {
      return a - b;
    }
  }
};

struct Mul {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return modular(a, b, [](uint64_t x, uint64_t y) { return x * y; });
    } else {
      return a * b;
    }
  }
};

struct Div {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return static_cast<T>(-1);  // as the interpreter: every bit set
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Sub()(T{0}, a);
      return static_cast<T>(a / b);
    } else {
      return a / b;
    }
  }
};

struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return a > b ? a : b;
    } else {
      return a > b || a != a ? a : b;  // a NaN on either side wins
    }
  }
};

struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return a < b ? a : b;
    } else {
      return a < b || a != a ? a : b;
    }
  }
};

struct Pow {
  template <typename T>
  T operator()(T a, T b) const {
    return std::pow(a, b);
  }
};

struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

// By the number of bits or more, or by a negative number: 0.
struct ShiftLeft {
  template <typename T>
  T operator()(T a, T b) const {
    using Word = std::make_unsigned_t<T>;
    const auto bits = static_cast<Word>(b);
    if (bits >= std::numeric_limits<Word>::digits) return 0;
    return static_cast<T>(static_cast<uint64_t>(static_cast<Word>(a)) << bits);
  }
};
struct ShiftRight {
  template <typename T>
  T operator()(T a, T b) const {
    using Word = std::make_unsigned_t<T>;
    const auto bits = static_cast<Word>(b);
    if (bits >= std::numeric_limits<Word>::digits) return 0;
    return static_cast<T>(static_cast<Word>(static_cast<Word>(a) >> bits));
  }
};

template <typename F>
void run_number(const KernelCall& call) {
  with_number(call.out[0].dtype(), [&](auto element) { map<decltype(element)>(call, F()); });
}

template <typename F>
void run_float(const KernelCall& call) {
  with_float(call.out[0].dtype(), [&](auto element) { map<decltype(element)>(call, F()); });
}

template <typename F>
void run_integer(const KernelCall& call) {
  with_integer(call.out[0].dtype(), [&](auto element) { map<decltype(element)>(call, F()); });
}

template <typename F>
void run_bits(const KernelCall& call) {
  if (call.out[0].dtype() == DType::kBool) {
    map<Bool>(call, F());
  } else {
    run_integer<F>(call);
  }
}

bool is_number(const Node&, std::span<const Type> in, std::span<const Type>) {
  return has_float_element(in[0].dtype) || has_integer_element(in[0].dtype);
}
bool is_float_type(const Node&, std::span<const Type> in, std::span<const Type>) {
  return has_float_element(in[0].dtype);
}
bool is_integer_type(const Node&, std::span<const Type> in, std::span<const Type>) {
  return has_integer_element(in[0].dtype);
}
bool is_integer_or_bool(const Node&, std::span<const Type> in, std::span<const Type>) {
  return in[0].dtype == DType::kBool || has_integer_element(in[0].dtype);
}

}  // namespace

std::span<const KernelEntry> binary_kernels() {
  static const KernelEntry kTable[] = {
      {&kAdd, {.run = run_number<Add>, .in_place = true}, is_number},
      {&kSub, {.run = run_number<Sub>, .in_place = true}, is_number},
      {&kMul, {.run = run_number<Mul>, .in_place = true}, is_number},
      {&kDiv, {.run = run_number<Div>, .in_place = true}, is_number},
      {&kMax, {.run = run_number<Max>, .in_place = true}, is_number},
      {&kMin, {.run = run_number<Min>, .in_place = true}, is_number},
      {&kPow, {.run = run_float<Pow>, .in_place = true}, is_float_type},
      {&kAnd, {.run = run_bits<And>, .in_place = true}, is_integer_or_bool},
      {&kOr, {.run = run_bits<Or>, .in_place = true}, is_integer_or_bool},
      {&kXor, {.run = run_bits<Xor>, .in_place = true}, is_integer_or_bool},
      {&kShiftLeft, {.run = run_integer<ShiftLeft>, .in_place = true}, is_integer_type},
      {&kShiftRight, {.run = run_integer<ShiftRight>, .in_place = true}, is_integer_type},
  };
  return kTable;
}

}  // namespace graft::cpu
