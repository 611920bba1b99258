// Kernels of compare, select and convert. An operand of one element serves for any shape.

#include "cpu/kernels/element.h"
#include "cpu/kernels/table.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

template <typename E, typename F>
void map_compare(const KernelCall& call, F f) {
  const auto* a = call.in[0].as<typename E::Stored>();
  const auto* b = call.in[1].as<typename E::Stored>();
  auto* out = call.out[0].as<uint8_t>();
  const int64_t step_a = call.in[0].elements() == 1 ? 0 : 1;
  const int64_t step_b = call.in[1].elements() == 1 ? 0 : 1;
  parallel_parts(call.out[0].elements(), call.threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = static_cast<uint8_t>(f(E::load(a + i * step_a), E::load(b + i * step_b)));
    }
  });
}

template <typename E>
void compare_elements(const KernelCall& call) {
  const std::string& direction = call.attributes().text("direction");
  if (direction == "EQ") return map_compare<E>(call, [](auto a, auto b) { return a == b; });
  if (direction == "NE") return map_compare<E>(call, [](auto a, auto b) { return a != b; });
  if (direction == "LT") return map_compare<E>(call, [](auto a, auto b) { return a < b; });
  if (direction == "LE") return map_compare<E>(call, [](auto a, auto b) { return a <= b; });
  if (direction == "GT") return map_compare<E>(call, [](auto a, auto b) { return a > b; });
  map_compare<E>(call, [](auto a, auto b) { return a >= b; });
}

void run_compare(const KernelCall& call) {
  if (call.in[0].dtype() == DType::kBool) return compare_elements<Bool>(call);
  with_number(call.in[0].dtype(), [&](auto element) { compare_elements<decltype(element)>(call); });
}

void run_select(const KernelCall& call) {
  const auto* condition = call.in[0].as<uint8_t>();
  const int64_t n = call.out[0].elements();
  const int64_t step = call.in[0].elements() == 1 ? 0 : 1;
  with_word(call.out[0].dtype(), [&](auto word) {
    using Word = decltype(word);
    const auto* a = call.in[1].as<Word>();
    const auto* b = call.in[2].as<Word>();
    auto* out = call.out[0].as<Word>();
    const int64_t step_a = call.in[1].elements() == 1 ? 0 : 1;
    const int64_t step_b = call.in[2].elements() == 1 ? 0 : 1;
    parallel_parts(n, call.threads, [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const Word if_true = a[i * step_a], if_false = b[i * step_b];
        out[i] = condition[i * step] != 0 ? if_true : if_false;
      }
    });
  });
}

template <typename From, typename To>
void map_convert(const KernelCall& call) {
  const auto* in = call.in[0].as<typename From::Stored>();
  auto* out = call.out[0].as<typename To::Stored>();
  parallel_parts(call.out[0].elements(), call.threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      To::store(out + i, static_cast<typename To::Computed>(From::load(in + i)));
    }
  });
}

// Any pair of types, by the conversions that define them.
void convert_any(const KernelCall& call) {
  const Buffer &in = call.in[0], &out = call.out[0];
  const auto in_bytes = dtype_bytes(in.dtype(), 1), out_bytes = dtype_bytes(out.dtype(), 1);
  parallel_parts(out.elements(), call.threads, [&](int64_t begin, int64_t end) {
    const auto at = static_cast<size_t>(begin);
    convert_elements(in.as<std::byte>() + at * in_bytes, in.dtype(),
                     out.as<std::byte>() + at * out_bytes, out.dtype(),
                     static_cast<size_t>(end - begin));
  });
}

void run_convert(const KernelCall& call) {
  const Buffer &in = call.in[0], &out = call.out[0];
  if (in.elements() == 1 && out.elements() != 1) {
    // One element for all: converted once.
    if (out.elements() == 0) return;
    convert_elements(in.data, in.dtype(), out.data, out.dtype(), 1);
    with_word(out.dtype(), [&](auto word) {
      auto* words = out.as<decltype(word)>();
      std::fill(words + 1, words + out.elements(), words[0]);
    });
    return;
  }
  const auto is = [&](DType from, DType to) { return in.dtype() == from && out.dtype() == to; };
  if (is(DType::kBF16, DType::kF32)) return map_convert<BF16, Plain<float>>(call);
  if (is(DType::kF32, DType::kBF16)) return map_convert<Plain<float>, BF16>(call);
  if (is(DType::kS32, DType::kF32)) return map_convert<Plain<int32_t>, Plain<float>>(call);
  if (is(DType::kBool, DType::kF32)) return map_convert<Bool, Plain<float>>(call);
  convert_any(call);
}

bool is_comparable(const Node&, std::span<const Type> in, std::span<const Type>) {
  const DType dtype = in[0].dtype;
  return dtype == DType::kBool || has_float_element(dtype) || has_integer_element(dtype);
}
bool is_unpacked(const Node&, std::span<const Type> in, std::span<const Type> out) {
  return dtype_bits(in[0].dtype) >= 8 && dtype_bits(out[0].dtype) >= 8;
}

}  // namespace

std::span<const KernelEntry> select_kernels() {
  static const KernelEntry kTable[] = {
      {&kCompare, {.run = run_compare}, is_comparable},
      {&kSelect, {.run = run_select, .in_place = true}, is_unpacked},
      {&kConvert, {.run = run_convert}, is_unpacked},
  };
  return kTable;
}

}  // namespace graft::cpu
