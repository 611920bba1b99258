// Kernels of gather, scatter_add and top_k.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/kernels/element.h"
#include "cpu/kernels/table.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

// Elements of one row: all axes but the first.
int64_t row_elements(const Shape& shape) {
  int64_t width = 1;
  for (size_t i = 1; i < shape.size(); ++i) width *= shape[i];
  return width;
}

void run_gather(const KernelCall& call) {
  const Buffer &table = call.in[0], &indices = call.in[1], &out = call.out[0];
  const int64_t rows = table.shape()[0], width = row_elements(table.shape());
  const size_t bytes = dtype_bytes(table.dtype(), static_cast<size_t>(width));
  parallel_rows(indices.elements(), width, call.threads, [&](int64_t i) {
    const auto row = std::clamp<int64_t>(indices.as<int32_t>()[i], 0, rows - 1);
    if (bytes == 0) return;
    std::memcpy(out.as<std::byte>() + static_cast<size_t>(i) * bytes,
                table.as<std::byte>() + static_cast<size_t>(row) * bytes, bytes);
  });
}

// Each task adds the updates, in index order, into columns of its own. Low-precision floats are
// summed in f32 (in scratch) and rounded once; f32 in f32.
template <typename E, typename Sum>
void scatter_columns(const KernelCall& call, Sum* sums, int64_t begin, int64_t end) {
  const Buffer &table = call.in[0], &indices = call.in[1];
  const int64_t rows = table.shape()[0], width = row_elements(table.shape());
  const auto* updates = call.in[2].as<typename E::Stored>();
  const auto* index = indices.as<int32_t>();
  for (int64_t i = 0; i < indices.elements(); ++i) {
    if (index[i] < 0 || index[i] >= rows) continue;
    Sum* to = sums + index[i] * width;
    const auto* from = updates + i * width;
    for (int64_t j = begin; j < end; ++j) {
      if constexpr (std::is_integral_v<Sum>) {
        to[j] = static_cast<Sum>(static_cast<uint64_t>(to[j]) +
                                 static_cast<uint64_t>(E::load(from + j)));
      } else {
        to[j] += E::load(from + j);
      }
    }
  }
}

template <typename E>
void scatter_add(const KernelCall& call) {
  const Buffer &table = call.in[0], &out = call.out[0];
  const int64_t n = out.elements(), width = row_elements(table.shape());
  using Computed = typename E::Computed;
  constexpr bool kNarrow = !std::is_same_v<typename E::Stored, Computed>;
  const auto* in = table.as<typename E::Stored>();
  auto* stored = out.as<typename E::Stored>();
  auto* sums = kNarrow ? reinterpret_cast<Computed*>(call.scratch.data())
                       : reinterpret_cast<Computed*>(stored);
  if (kNarrow || in != stored) {
    parallel_parts(n, call.threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sums[i] = E::load(in + i);
    });
  }
  constexpr int64_t kColumns = 64;
  parallel_parts(
      width, call.threads,
      [&](int64_t begin, int64_t end) { scatter_columns<E, Computed>(call, sums, begin, end); },
      kColumns, call.in[1].elements());
  if (!kNarrow) return;
  parallel_parts(n, call.threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) E::store(stored + i, sums[i]);
  });
}

void run_scatter_add(const KernelCall& call) {
  with_number(call.out[0].dtype(), [&](auto element) { scatter_add<decltype(element)>(call); });
}

size_t scatter_scratch(const Node&, std::span<const Type>, std::span<const Type> out, int) {
  const bool narrow = is_float(out[0].dtype) && dtype_bits(out[0].dtype) < 32;
  return narrow ? static_cast<size_t>(out[0].elements()) * sizeof(float) : 0;
}

// Descending; a NaN comes before every number; of equals the lower index first.
template <typename T>
bool comes_before(const T& a, const T& b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
  }
  return a > b;
}

void run_top_k(const KernelCall& call) {
  const Buffer& x = call.in[0];
  const int64_t width = x.shape().back(), k = call.attributes().i64("k");
  if (k == 0 || width == 0) return;
  auto* scratch = reinterpret_cast<int32_t*>(call.scratch.data());
  with_number(x.dtype(), [&](auto element) {
    using E = decltype(element);
    const auto* data = x.as<typename E::Stored>();
    auto* values = call.out[0].as<typename E::Stored>();
    auto* places = call.out[1].as<int32_t>();
    parallel_rows(x.elements() / width, width * 16, call.threads, [&](int64_t row) {
      const auto* from = data + row * width;
      int32_t* order = scratch + row * width;
      for (int64_t i = 0; i < width; ++i) order[i] = static_cast<int32_t>(i);
      std::partial_sort(order, order + k, order + width, [&](int32_t a, int32_t b) {
        const auto left = E::load(from + a), right = E::load(from + b);
        if (comes_before(left, right)) return true;
        return !comes_before(right, left) && a < b;
      });
      for (int64_t i = 0; i < k; ++i) {
        values[row * k + i] = from[order[i]];
        places[row * k + i] = order[i];
      }
    });
  });
}

size_t top_k_scratch(const Node&, std::span<const Type> in, std::span<const Type>, int) {
  return static_cast<size_t>(in[0].elements()) * sizeof(int32_t);
}

bool is_unpacked(const Node&, std::span<const Type> in, std::span<const Type>) {
  return dtype_bits(in[0].dtype) >= 8;
}
bool is_number(const Node&, std::span<const Type> in, std::span<const Type>) {
  return has_float_element(in[0].dtype) || has_integer_element(in[0].dtype);
}

}  // namespace

std::span<const KernelEntry> index_kernels() {
  static const KernelEntry kTable[] = {
      {&kGather, {.run = run_gather}, is_unpacked},
      {&kScatterAdd,
       {.run = run_scatter_add,
        .scratch_bytes = scatter_scratch,
        .in_place = true,
        .in_place_operands = 1},
       is_number},
      {&kTopK, {.run = run_top_k, .scratch_bytes = top_k_scratch}, is_number},
  };
  return kTable;
}

}  // namespace graft::cpu
