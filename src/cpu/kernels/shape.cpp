// Kernels of the primitives that move elements. Reshape is a view and never runs (cpu/lower.h).

#include <cstring>

#include "cpu/kernels/element.h"
#include "cpu/kernels/strided.h"
#include "cpu/kernels/table.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

std::byte* at(const Buffer& buffer, int64_t element) {
  return buffer.as<std::byte>() + dtype_bytes(buffer.dtype(), 1) * static_cast<size_t>(element);
}

void run_broadcast(const KernelCall& call) {
  const Buffer &x = call.in[0], &out = call.out[0];
  const std::vector<int64_t>& dims = call.attributes().integers("dims");
  const Strides from = dense_strides(x.shape()), to = dense_strides(out.shape());
  Strides spread{};
  for (size_t i = 0; i < dims.size(); ++i) {
    if (x.shape()[i] != 1) spread[static_cast<size_t>(dims[i])] = from[i];
  }
  StridedCopy copy;
  for (size_t i = 0; i < out.shape().size(); ++i) copy.add(out.shape()[i], spread[i], to[i]);
  copy.run(x.data, out.data, out.dtype(), call.threads);
}

void run_transpose(const KernelCall& call) {
  const Buffer &x = call.in[0], &out = call.out[0];
  const std::vector<int64_t>& permutation = call.attributes().integers("permutation");
  const Strides from = dense_strides(x.shape()), to = dense_strides(out.shape());
  StridedCopy copy;
  for (size_t i = 0; i < permutation.size(); ++i) {
    copy.add(out.shape()[i], from[static_cast<size_t>(permutation[i])], to[i]);
  }
  copy.run(x.data, out.data, out.dtype(), call.threads);
}

void run_slice(const KernelCall& call) {
  const Buffer &x = call.in[0], &out = call.out[0];
  const std::vector<int64_t>& start = call.attributes().integers("start");
  const std::vector<int64_t>& stride = call.attributes().integers("stride");
  const Strides from = dense_strides(x.shape()), to = dense_strides(out.shape());
  int64_t first = 0;
  StridedCopy copy;
  for (size_t i = 0; i < start.size(); ++i) {
    first += start[i] * from[i];
    copy.add(out.shape()[i], from[i] * stride[i], to[i]);
  }
  copy.run(at(x, first), out.data, out.dtype(), call.threads);
}

// Copies a dense array into a part of another of as many axes, `offset` elements in.
void place(const Buffer& x, const Buffer& out, int64_t offset, int threads) {
  const Strides from = dense_strides(x.shape()), to = dense_strides(out.shape());
  StridedCopy copy;
  for (size_t i = 0; i < x.shape().size(); ++i) copy.add(x.shape()[i], from[i], to[i]);
  copy.run(x.data, at(out, offset), out.dtype(), threads);
}

void run_pad(const KernelCall& call) {
  const Buffer &x = call.in[0], &value = call.in[1], &out = call.out[0];
  StridedCopy fill;
  fill.add(out.elements(), 0, 1);
  fill.run(value.data, out.data, out.dtype(), call.threads);
  const std::vector<int64_t>& low = call.attributes().integers("low");
  const Strides to = dense_strides(out.shape());
  int64_t offset = 0;
  for (size_t i = 0; i < low.size(); ++i) offset += low[i] * to[i];
  place(x, out, offset, call.threads);
}

void run_concatenate(const KernelCall& call) {
  const Buffer& out = call.out[0];
  const auto axis = static_cast<size_t>(call.attributes().i64("axis"));
  const int64_t stride = dense_strides(out.shape())[axis];
  int64_t offset = 0;
  for (const Buffer& part : call.in) {
    place(part, out, offset, call.threads);
    offset += part.shape()[axis] * stride;
  }
}

// Where a window of `sizes` into `shape` begins, in elements: the starts, operands from `first` on,
// moved so that it fits.
int64_t window_offset(const KernelCall& call, size_t first, const Shape& shape,
                      const Shape& sizes) {
  const Strides strides = dense_strides(shape);
  int64_t offset = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t start = *call.in[first + i].as<int32_t>();
    offset += std::clamp<int64_t>(start, 0, shape[i] - sizes[i]) * strides[i];
  }
  return offset;
}

void run_dynamic_slice(const KernelCall& call) {
  const Buffer &x = call.in[0], &out = call.out[0];
  const Strides from = dense_strides(x.shape()), to = dense_strides(out.shape());
  StridedCopy copy;
  for (size_t i = 0; i < out.shape().size(); ++i) copy.add(out.shape()[i], from[i], to[i]);
  const int64_t first = window_offset(call, 1, x.shape(), out.shape());
  copy.run(at(x, first), out.data, out.dtype(), call.threads);
}

// In place where the result lies over operand 0: only the window is written.
void run_dynamic_update_slice(const KernelCall& call) {
  const Buffer &x = call.in[0], &update = call.in[1], &out = call.out[0];
  const int64_t offset = window_offset(call, 2, x.shape(), update.shape());
  if (x.data != out.data) {
    StridedCopy copy;
    copy.add(out.elements(), 1, 1);
    copy.run(x.data, out.data, out.dtype(), call.threads);
  }
  place(update, out, offset, call.threads);
}

bool is_unpacked(const Node&, std::span<const Type>, std::span<const Type> out) {
  return dtype_bits(out[0].dtype) >= 8;
}

}  // namespace

std::span<const KernelEntry> shape_kernels() {
  static const KernelEntry kTable[] = {
      {&kBroadcastInDim, {.run = run_broadcast}, is_unpacked},
      {&kTranspose, {.run = run_transpose}, is_unpacked},
      {&kSlice, {.run = run_slice}, is_unpacked},
      {&kPad, {.run = run_pad}, is_unpacked},
      {&kConcatenate, {.run = run_concatenate}, is_unpacked},
      {&kDynamicSlice, {.run = run_dynamic_slice}, is_unpacked},
      {&kDynamicUpdateSlice,
       {.run = run_dynamic_update_slice, .in_place = true, .in_place_operands = 1},
       is_unpacked},
  };
  return kTable;
}

}  // namespace graft::cpu
