// Reference kernels of reductions and dot_general. Every sum is in double, in index order.

#include <cmath>
#include <limits>

#include "ir/primitives.h"
#include "ir/reference_kernel.h"
#include "ir/shape_rules.h"

namespace graft::reference {
namespace {

using Strides = std::vector<int64_t>;

// Strides that take an index of the operand to its place in the result, 0 along reduced axes.
Strides reduced_strides(const KernelCall& call) {
  const auto rank = static_cast<int64_t>(call.in[0]->type.shape.size());
  const Strides kept = row_major_strides(call.out[0].type.shape);
  Strides strides(static_cast<size_t>(rank), 0);
  size_t next = 0;
  for (int64_t axis : other_axes(rank, call.attributes().integers("axes"))) {
    strides[static_cast<size_t>(axis)] = kept[next++];
  }
  return strides;
}

void reduce_sum(const KernelCall& call) {
  const Array& x = *call.in[0];
  Array& out = call.out[0];
  walk(x.type.shape, row_major_strides(x.type.shape), reduced_strides(call),
       [&](int64_t from, int64_t to) {
         const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
         if (x.is_float()) {
           out.floats[b] += x.floats[a];
         } else {
           const uint64_t sum =
               static_cast<uint64_t>(out.integers[b]) + static_cast<uint64_t>(x.integers[a]);
           out.integers[b] = wrap(static_cast<int64_t>(sum), out.type.dtype);
         }
       });
}

int64_t smallest(DType dtype) {
  if (dtype == DType::kU8 || dtype == DType::kU32) return 0;
  return std::numeric_limits<int64_t>::min() >> (64 - dtype_bits(dtype));
}

void reduce_max(const KernelCall& call) {
  const Array& x = *call.in[0];
  Array& out = call.out[0];
  out.floats.assign(out.floats.size(), -std::numeric_limits<double>::infinity());
  out.integers.assign(out.integers.size(), smallest(out.type.dtype));
  with_elements(x, out, [&](const auto& from, auto& to) {
    walk(x.type.shape, row_major_strides(x.type.shape), reduced_strides(call),
         [&](int64_t source, int64_t target) {
           const auto value = from[static_cast<size_t>(source)];
           auto& largest = to[static_cast<size_t>(target)];
           if (value > largest || value != value) largest = value;  // a NaN stays
         });
  });
}

// The floats of an array with its axes in this order.
std::vector<double> arranged(const Array& x, const std::vector<std::vector<int64_t>>& groups) {
  const Strides strides = row_major_strides(x.type.shape);
  Shape shape;
  Strides source;
  for (const auto& group : groups) {
    for (int64_t axis : group) {
      shape.push_back(x.type.shape[static_cast<size_t>(axis)]);
      source.push_back(strides[static_cast<size_t>(axis)]);
    }
  }
  std::vector<double> result(x.floats.size());
  walk(shape, source, row_major_strides(shape), [&](int64_t from, int64_t to) {
    result[static_cast<size_t>(to)] = x.floats[static_cast<size_t>(from)];
  });
  return result;
}

size_t extent(const Array& x, const std::vector<int64_t>& axes) {
  size_t product = 1;
  for (int64_t axis : axes) product *= static_cast<size_t>(x.type.shape[static_cast<size_t>(axis)]);
  return product;
}

std::vector<int64_t> free_axes(const Array& x, std::vector<int64_t> batch,
                               const std::vector<int64_t>& contract) {
  batch.insert(batch.end(), contract.begin(), contract.end());
  return other_axes(static_cast<int64_t>(x.type.shape.size()), batch);
}

void dot_general(const KernelCall& call) {
  const Array &lhs = *call.in[0], &rhs = *call.in[1];
  const auto& lhs_batch = call.attributes().integers("lhs_batch");
  const auto& rhs_batch = call.attributes().integers("rhs_batch");
  const auto& lhs_contract = call.attributes().integers("lhs_contract");
  const auto& rhs_contract = call.attributes().integers("rhs_contract");
  const std::vector<int64_t> lhs_free = free_axes(lhs, lhs_batch, lhs_contract);
  const std::vector<int64_t> rhs_free = free_axes(rhs, rhs_batch, rhs_contract);
  const std::vector<double> a = arranged(lhs, {lhs_batch, lhs_free, lhs_contract});
  const std::vector<double> b = arranged(rhs, {rhs_batch, rhs_contract, rhs_free});
  const size_t m = extent(lhs, lhs_free), k = extent(lhs, lhs_contract), n = extent(rhs, rhs_free);
  const size_t rows = extent(lhs, lhs_batch) * m;
  for (size_t row = 0; row < rows; ++row) {
    double* out = call.out[0].floats.data() + row * n;
    const double* left = a.data() + row * k;
    const double* right = b.data() + row / m * k * n;
    for (size_t i = 0; i < k; ++i) {
      for (size_t j = 0; j < n; ++j) out[j] += left[i] * right[i * n + j];
    }
  }
}

}  // namespace

void add_reduction_kernels(KernelTable& table) {
  table[&kReduceSum] = reduce_sum;
  table[&kReduceMax] = reduce_max;
  table[&kDotGeneral] = dot_general;
}

}  // namespace graft::reference
