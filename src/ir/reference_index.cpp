// Reference kernels of gather, scatter_add and top_k.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/primitives.h"
#include "ir/reference_kernel.h"

namespace graft::reference {
namespace {

size_t row_elements(const Type& table) {
  return static_cast<size_t>(element_count(Shape(table.shape.begin() + 1, table.shape.end())));
}

void gather(const KernelCall& call) {
  const Array& table = *call.in[0];
  const size_t width = row_elements(table.type);
  const std::vector<int64_t>& indices = call.in[1]->integers;
  with_elements(table, call.out[0], [&](const auto& from, auto& to) {
    for (size_t i = 0; i < indices.size(); ++i) {
      const auto row =
          static_cast<size_t>(std::clamp<int64_t>(indices[i], 0, table.type.shape[0] - 1));
      for (size_t j = 0; j < width; ++j) to[i * width + j] = from[row * width + j];
    }
  });
}

void scatter_add(const KernelCall& call) {
  const Array& table = *call.in[0];
  const size_t width = row_elements(table.type);
  const std::vector<int64_t>& indices = call.in[1]->integers;
  const Array& updates = *call.in[2];
  Array& out = call.out[0];
  with_elements(table, out, [](const auto& from, auto& to) { to = from; });
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= table.type.shape[0]) continue;
    const size_t row = static_cast<size_t>(indices[i]) * width;
    for (size_t j = 0; j < width; ++j) {
      if (out.is_float()) {
        out.floats[row + j] += updates.floats[i * width + j];
      } else {
        const uint64_t sum = static_cast<uint64_t>(out.integers[row + j]) +
                             static_cast<uint64_t>(updates.integers[i * width + j]);
        out.integers[row + j] = wrap(static_cast<int64_t>(sum), out.type.dtype);
      }
    }
  }
}

// Descending; a NaN comes before every number.
bool before(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
  return a > b;
}
bool before(int64_t a, int64_t b) { return a > b; }

void top_k(const KernelCall& call) {
  const Array& x = *call.in[0];
  const auto width = static_cast<size_t>(x.type.shape.back());
  const auto k = static_cast<size_t>(call.attributes().i64("k"));
  if (k == 0) return;
  const size_t rows = static_cast<size_t>(x.elements()) / width;
  std::vector<size_t> order(width);
  with_elements(x, call.out[0], [&](const auto& from, auto& to) {
    for (size_t row = 0; row < rows; ++row) {
      const auto* values = from.data() + row * width;
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return before(values[a], values[b]); });
      for (size_t i = 0; i < k; ++i) {
        to[row * k + i] = values[order[i]];
        call.out[1].integers[row * k + i] = static_cast<int64_t>(order[i]);
      }
    }
  });
}

}  // namespace

void add_index_kernels(KernelTable& table) {
  table[&kGather] = gather;
  table[&kScatterAdd] = scatter_add;
  table[&kTopK] = top_k;
}

}  // namespace graft::reference
