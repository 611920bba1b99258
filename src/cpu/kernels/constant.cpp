// Kernels of splat and iota.

#include "cpu/kernels/element.h"
#include "cpu/kernels/table.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

// Splats of more than one element were rewritten to broadcasts (cpu/lower.h).
void run_splat(const KernelCall& call) {
  const double value = call.attributes().f64("value");
  const Buffer& out = call.out[0];
  for (int64_t i = 0; i < out.elements(); ++i) {
    auto* element =
        static_cast<std::byte*>(out.data) + dtype_bytes(out.dtype(), static_cast<size_t>(i));
    convert_elements(&value, DType::kF64, element, out.dtype(), 1);
  }
}

void run_iota(const KernelCall& call) {
  const Buffer& out = call.out[0];
  const auto axis = static_cast<size_t>(call.attributes().i64("axis"));
  const int64_t extent = out.shape()[axis];
  int64_t inner = 1;
  for (size_t i = axis + 1; i < out.shape().size(); ++i) inner *= out.shape()[i];
  with_number(out.dtype(), [&](auto element) {
    using E = decltype(element);
    using Computed = typename E::Computed;
    auto* data = out.as<typename E::Stored>();
    const int64_t runs = inner == 0 ? 0 : out.elements() / inner;
    parallel_rows(runs, inner, call.threads, [&](int64_t run) {
      const auto count = static_cast<Computed>(run % extent);
      for (int64_t i = 0; i < inner; ++i) E::store(data + run * inner + i, count);
    });
  });
}

bool is_unpacked(const Node&, std::span<const Type>, std::span<const Type> out) {
  return dtype_bits(out[0].dtype) >= 8;
}
bool is_number(const Node&, std::span<const Type>, std::span<const Type> out) {
  return has_float_element(out[0].dtype) || has_integer_element(out[0].dtype);
}

}  // namespace

std::span<const KernelEntry> constant_kernels() {
  static const KernelEntry kTable[] = {
      {&kSplat, {.run = run_splat}, is_unpacked},
      {&kIota, {.run = run_iota}, is_number},
  };
  return kTable;
}

}  // namespace graft::cpu
