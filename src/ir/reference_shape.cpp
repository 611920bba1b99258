// Reference kernels of the primitives that move elements.

#include <algorithm>

#include "ir/logical_axes.h"
#include "ir/primitives.h"
#include "ir/reference_kernel.h"

namespace graft::reference {
namespace {

using Strides = std::vector<int64_t>;

int64_t offset_of(const std::vector<int64_t>& index, const Strides& strides) {
  int64_t offset = 0;
  for (size_t i = 0; i < index.size(); ++i) offset += index[i] * strides[i];
  return offset;
}

// to[to_offset + ...] = from[from_offset + ...] over every index of `shape`.
void copy_strided(const Array& from, int64_t from_offset, const Strides& from_strides, Array& to,
                  int64_t to_offset, const Strides& to_strides, const Shape& shape) {
  with_elements(from, to, [&](const auto& source, auto& target) {
    walk(shape, from_strides, to_strides, [&](int64_t a, int64_t b) {
      target[static_cast<size_t>(to_offset + b)] = source[static_cast<size_t>(from_offset + a)];
    });
  });
}

// Fills a result whose index i comes from the operand's offset + i . strides.
void gather_strided(const KernelCall& call, int64_t offset, const Strides& strides) {
  Array& out = call.out[0];
  const Shape shape = out.type.shape;
  copy_strided(*call.in[0], offset, strides, out, 0, row_major_strides(shape), shape);
}

void broadcast_in_dim(const KernelCall& call) {
  const Shape& from = call.in[0]->type.shape;
  const Strides strides = row_major_strides(from);
  const auto& dims = call.attributes().integers("dims");
  Strides spread(call.out[0].type.shape.size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (from[i] != 1) spread[static_cast<size_t>(dims[i])] = strides[i];
  }
  gather_strided(call, 0, spread);
}

void reshape(const KernelCall& call) {
  with_elements(*call.in[0], call.out[0], [](const auto& from, auto& to) { to = from; });
}

void transpose(const KernelCall& call) {
  const Strides strides = row_major_strides(call.in[0]->type.shape);
  Strides permuted;
  for (int64_t axis : call.attributes().integers("permutation")) {
    permuted.push_back(strides[static_cast<size_t>(axis)]);
  }
  gather_strided(call, 0, permuted);
}

void slice(const KernelCall& call) {
  const Strides strides = row_major_strides(call.in[0]->type.shape);
  Strides stepped = strides;
  const auto& step = call.attributes().integers("stride");
  for (size_t i = 0; i < step.size(); ++i) stepped[i] *= step[i];
  gather_strided(call, offset_of(call.attributes().integers("start"), strides), stepped);
}

void pad(const KernelCall& call) {
  const Array &x = *call.in[0], &value = *call.in[1];
  Array& out = call.out[0];
  with_elements(value, out, [](const auto& from, auto& to) { to.assign(to.size(), from[0]); });
  const Strides strides = row_major_strides(out.type.shape);
  copy_strided(x, 0, row_major_strides(x.type.shape), out,
               offset_of(call.attributes().integers("low"), strides), strides, x.type.shape);
}

void concatenate(const KernelCall& call) {
  Array& out = call.out[0];
  const auto axis = static_cast<size_t>(call.attributes().i64("axis"));
  const Strides strides = row_major_strides(out.type.shape);
  int64_t offset = 0;
  for (const Array* part : call.in) {
    const Shape& shape = part->type.shape;
    copy_strided(*part, 0, row_major_strides(shape), out, offset, strides, shape);
    offset += shape[axis] * strides[axis];
  }
}

// The starts, operands from `first` on, moved so that `sizes` fits into `shape`.
std::vector<int64_t> clamped_starts(const KernelCall& call, size_t first, const Shape& shape,
                                    const Shape& sizes) {
  std::vector<int64_t> starts;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t start = call.in[first + i]->integers[0];
    starts.push_back(std::clamp<int64_t>(start, 0, shape[i] - sizes[i]));
  }
  return starts;
}

void dynamic_slice(const KernelCall& call) {
  const Shape& shape = call.in[0]->type.shape;
  const Strides strides = row_major_strides(shape);
  const auto starts = clamped_starts(call, 1, shape, call.out[0].type.shape);
  gather_strided(call, offset_of(starts, strides), strides);
}

void dynamic_update_slice(const KernelCall& call) {
  const Array &x = *call.in[0], &update = *call.in[1];
  Array& out = call.out[0];
  with_elements(x, out, [](const auto& from, auto& to) { to = from; });
  const Strides strides = row_major_strides(x.type.shape);
  const auto starts = clamped_starts(call, 2, x.type.shape, update.type.shape);
  copy_strided(update, 0, row_major_strides(update.type.shape), out, offset_of(starts, strides),
               strides, update.type.shape);
}

}  // namespace

void add_shape_kernels(KernelTable& table) {
  table[&kBroadcastInDim] = broadcast_in_dim;
  table[&kReshape] = reshape;
  table[&kLogicalAxes] = reshape;
  table[&kTranspose] = transpose;
  table[&kSlice] = slice;
  table[&kPad] = pad;
  table[&kConcatenate] = concatenate;
  table[&kDynamicSlice] = dynamic_slice;
  table[&kDynamicUpdateSlice] = dynamic_update_slice;
}

}  // namespace graft::reference
