#pragma once
// What the reference interpreter is made of: arrays of doubles or 64-bit integers, one kernel a
// primitive, and the walk over strided arrays that most kernels are.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace graft::reference {

// Floats of any type in `floats`, integers and bools in `integers`; the other is empty. Row-major.
struct Array {
  Type type;
  std::vector<double> floats;
  std::vector<int64_t> integers;

  static Array zeros(Type type);
  bool is_float() const { return graft::is_float(type.dtype); }
  int64_t elements() const { return type.elements(); }
};

struct KernelCall {
  const Node& node;
  std::span<const Array* const> in;
  std::span<Array> out;  // zeros of the result types

  const Attributes& attributes() const { return node.attributes; }
};
using Kernel = void (*)(const KernelCall&);
using KernelTable = std::unordered_map<const Op*, Kernel>;

void add_elementwise_kernels(KernelTable& table);
void add_shape_kernels(KernelTable& table);
void add_reduction_kernels(KernelTable& table);
void add_index_kernels(KernelTable& table);

// What an integer of this type holds of v: v modulo 2^bits, in the type's range. Bools: v != 0.
int64_t wrap(int64_t v, DType dtype);

// Calls f(elements of an operand, elements of the result), for whichever kind they are.
template <typename F>
void with_elements(const Array& in, Array& out, F f) {
  if (in.is_float()) {
    f(in.floats, out.floats);
  } else {
    f(in.integers, out.integers);
  }
}

std::vector<int64_t> row_major_strides(const Shape& shape);

// Calls visit(a, b) for every index of `shape` in row-major order, where a and b are the offsets
// that two lists of strides give it.
template <typename Visit>
void walk(const Shape& shape, std::span<const int64_t> a_strides,
          std::span<const int64_t> b_strides, Visit visit) {
  if (element_count(shape) == 0) return;
  std::vector<int64_t> index(shape.size(), 0);
  int64_t a = 0, b = 0;
  while (true) {
    visit(a, b);
    size_t axis = shape.size();
    while (axis > 0) {
      --axis;
      a += a_strides[axis];
      b += b_strides[axis];
      if (++index[axis] < shape[axis]) break;
      a -= a_strides[axis] * shape[axis];
      b -= b_strides[axis] * shape[axis];
      index[axis] = 0;
      if (axis == 0) return;
    }
    if (shape.empty()) return;
  }
}

}  // namespace graft::reference
