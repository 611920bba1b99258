#pragma once
// What the kernels of primitives share: element types as C++ types, and loops over a team of
// threads.
//
// An Element says how a value is stored and in which type it is computed: low-precision floats in
// f32, rounded once when stored.
//
//   with_float(dtype, [&](auto element) {
//     using E = decltype(element);
//     E::store(out + i, f(E::load(in + i)));
//   });

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"
#include "cpu/kernel.h"

namespace graft::cpu {

template <typename T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static T load(const T* p) { return *p; }
  static void store(T* p, T value) { *p = value; }
};

struct Bool {
  using Stored = uint8_t;
  using Computed = uint8_t;
  static uint8_t load(const uint8_t* p) { return static_cast<uint8_t>(*p != 0); }
  static void store(uint8_t* p, uint8_t value) { *p = static_cast<uint8_t>(value != 0); }
};

// As bf16_to_f32 and f32_to_bf16 of base/dtype.h, here so that loops over them vectorise.
struct BF16 {
  using Stored = uint16_t;
  using Computed = float;
  static float load(const uint16_t* p) {
    return std::bit_cast<float>(static_cast<uint32_t>(*p) << 16);
  }
  static void store(uint16_t* p, float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40U;
    *p = static_cast<uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded);
  }
};

struct F16 {
  using Stored = uint16_t;
  using Computed = float;
  static float load(const uint16_t* p) { return f16_to_f32(*p); }
  static void store(uint16_t* p, float value) { *p = f32_to_f16(value); }
};

// Calls f with the Element of a dtype; returns false (and does not call) where there is none.
template <typename F>
bool try_float(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32: f(Plain<float>()); return true;
    case DType::kBF16: f(BF16()); return true;
    case DType::kF16: f(F16()); return true;
    case DType::kF64: f(Plain<double>()); return true;
    default: return false;
  }
}

template <typename F>
bool try_integer(DType dtype, F f) {
  switch (dtype) {
    case DType::kU8: f(Plain<uint8_t>()); return true;
    case DType::kS8: f(Plain<int8_t>()); return true;
    case DType::kU32: f(Plain<uint32_t>()); return true;
    case DType::kS32: f(Plain<int32_t>()); return true;
    case DType::kS64: f(Plain<int64_t>()); return true;
    default: return false;
  }
}

inline bool has_float_element(DType dtype) {
  return try_float(dtype, [](auto) {});
}
inline bool has_integer_element(DType dtype) {
  return try_integer(dtype, [](auto) {});
}

template <typename F>
void with_float(DType dtype, F f) {
  GRAFT_CHECK(try_float(dtype, f), "no kernel for {}", dtype_name(dtype));
}
template <typename F>
void with_integer(DType dtype, F f) {
  GRAFT_CHECK(try_integer(dtype, f), "no kernel for {}", dtype_name(dtype));
}
template <typename F>
void with_number(DType dtype, F f) {
  GRAFT_CHECK(try_float(dtype, f) || try_integer(dtype, f), "no kernel for {}", dtype_name(dtype));
}

// Elements as plain words of their size, for kernels that only move them. f takes a value of the
// word.
template <typename F>
void with_word(DType dtype, F f) {
  switch (dtype_bits(dtype)) {
    case 8: return f(uint8_t{});
    case 16: return f(uint16_t{});
    case 32: return f(uint32_t{});
    case 64: return f(uint64_t{});
    default: GRAFT_CHECK(false, "{} is packed", dtype_name(dtype));
  }
}

// Elements that one thread takes at a time, and how many operations are worth waking a team for.
inline constexpr int64_t kPart = 1 << 14;
inline constexpr int64_t kTeamWork = 1 << 16;

// f(begin, end) over parts of [0, n) whose bounds depend on n alone; each of the n costs about
// `cost` operations.
template <typename F>
void parallel_parts(int64_t n, int threads, F f, int64_t part = kPart, int64_t cost = 1) {
  const int64_t parts = (n + part - 1) / part;
  if (parts <= 1 || threads <= 1 || n * cost < kTeamWork) {
    for (int64_t p = 0; p < parts; ++p) f(p * part, std::min(n, (p + 1) * part));
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t p = 0; p < parts; ++p) f(p * part, std::min(n, (p + 1) * part));
}

// f(i) for i in [0, n), where each costs about `cost` operations.
template <typename F>
void parallel_rows(int64_t n, int64_t cost, int threads, F f) {
  cost = std::max<int64_t>(1, cost);
  parallel_parts(
      n, threads,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) f(i);
      },
      std::max<int64_t>(1, kPart / cost), cost);
}

}  // namespace graft::cpu
