#include "base/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace graft {
namespace {

constexpr size_t kAlignment = 64;

// What an empty borrowed tensor points to, so that it still counts as defined.
alignas(kAlignment) constexpr std::byte kNothing[kAlignment] = {};

std::shared_ptr<void> allocate(size_t bytes, const Shape& shape) {
  if (bytes > SIZE_MAX - kAlignment) {
    throw Error(fmt::format("a tensor of shape {} is larger than any memory", to_string(shape)));
  }
  const size_t padded = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  void* memory = std::aligned_alloc(kAlignment, padded);
  if (memory == nullptr) {
    throw Error(
        fmt::format("no memory for a tensor of shape {} ({} bytes)", to_string(shape), bytes), "",
        "use a smaller batch or a smaller model");
  }
  return {memory, std::free};
}

}  // namespace

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  bool overflow = false;
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) throw Error(fmt::format("shape {} has a negative extent", to_string(shape)));
    if (extent == 0) empty = true;
    overflow = overflow || (extent != 0 && __builtin_mul_overflow(count, extent, &count));
  }
  // Also with a zero extent: whatever drops that axis would meet the overflow.
  if (overflow) throw Error(fmt::format("shape {} has too many elements", to_string(shape)));
  return empty ? 0 : count;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Tensor Tensor::empty(DType dtype, Shape shape) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.elements_ = element_count(shape);
  tensor.shape_ = std::move(shape);
  const std::shared_ptr<void> memory = allocate(tensor.size_bytes(), tensor.shape_);
  tensor.bytes_ = static_cast<const std::byte*>(memory.get());
  tensor.owner_ = memory;
  tensor.writable_ = true;
  return tensor;
}

Tensor Tensor::zeros(DType dtype, Shape shape) {
  Tensor tensor = empty(dtype, std::move(shape));
  std::memset(tensor.mutable_bytes(), 0, tensor.size_bytes());
  return tensor;
}

Tensor Tensor::borrow(DType dtype, Shape shape, const void* bytes,
                      std::shared_ptr<const void> owner) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.elements_ = element_count(shape);
  tensor.shape_ = std::move(shape);
  if (tensor.elements_ == 0 && bytes == nullptr) bytes = kNothing;
  GRAFT_CHECK(bytes != nullptr);
  tensor.bytes_ = static_cast<const std::byte*>(bytes);
  tensor.owner_ = std::move(owner);
  return tensor;
}

Tensor Tensor::reshaped(Shape shape) const {
  GRAFT_CHECK(element_count(shape) == elements_, "{} cannot become {}", to_string(shape_),
              to_string(shape));
  Tensor tensor = *this;
  tensor.shape_ = std::move(shape);
  return tensor;
}

Tensor Tensor::as(DType dtype) const {
  GRAFT_CHECK(defined());
  if (dtype == dtype_) return *this;
  Tensor tensor = empty(dtype, shape_);
  convert_elements(bytes_, dtype_, tensor.mutable_bytes(), dtype, static_cast<size_t>(elements_));
  return tensor;
}

Tensor Tensor::clone() const {
  GRAFT_CHECK(defined());
  Tensor tensor = empty(dtype_, shape_);
  std::memcpy(tensor.mutable_bytes(), bytes_, size_bytes());
  return tensor;
}

Tensor Tensor::aligned() const {
  return reinterpret_cast<uintptr_t>(bytes_) % kAlignment == 0 ? *this : clone();
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  GRAFT_CHECK(!shape_.empty() && 0 <= begin && begin <= end && end <= shape_[0],
              "rows {} to {} of {}", begin, end, to_string(shape_));
  Tensor tensor = *this;
  tensor.shape_[0] = end - begin;
  tensor.elements_ = element_count(tensor.shape_);
  const int64_t row = shape_[0] == 0 ? 0 : elements_ / shape_[0];
  const size_t skipped = static_cast<size_t>(begin * row);
  GRAFT_CHECK(dtype_bits(dtype_) >= 8 || skipped % 2 == 0, "a row must begin at a whole byte");
  tensor.bytes_ += dtype_bytes(dtype_, skipped);
  return tensor;
}

}  // namespace graft
