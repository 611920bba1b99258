#pragma once
// Dense arrays on the host: a shape, an element type, and bytes that are owned or borrowed.
//
// Shape is a list of extents, slowest first. Tensor is the value that readers give and executors
// take; copying it shares the bytes. A borrowed tensor (a view into a mapped file) keeps its owner
// alive.
//
//   Tensor t = Tensor::zeros(DType::kF32, {2, 3});
//   t.data<float>()[0] = 1;

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

namespace graft {

using Shape = std::vector<int64_t>;

int64_t element_count(const Shape& shape);  // 1 for a scalar; raises Error on overflow
std::string to_string(const Shape& shape);  // "[2, 3]"

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kS8;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::kU32;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kS32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kS64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};

class Tensor {
 public:
  Tensor() = default;

  static Tensor empty(DType dtype, Shape shape);  // 64-byte aligned, contents undefined
  static Tensor zeros(DType dtype, Shape shape);
  // Borrows bytes that `owner` keeps alive. They need not be aligned; see aligned().
  static Tensor borrow(DType dtype, Shape shape, const void* bytes,
                       std::shared_ptr<const void> owner);

  template <typename T>
  static Tensor of(Shape shape, const std::vector<T>& values) {
    Tensor t = empty(DTypeOf<T>::value, std::move(shape));
    GRAFT_CHECK(static_cast<int64_t>(values.size()) == t.elements());
    for (size_t i = 0; i < values.size(); ++i) t.data<T>()[i] = values[i];
    return t;
  }

  bool defined() const { return bytes_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return elements_; }
  size_t size_bytes() const { return dtype_bytes(dtype_, static_cast<size_t>(elements_)); }

  const std::byte* bytes() const { return bytes_; }
  std::byte* mutable_bytes() {
    GRAFT_CHECK(writable_, "a borrowed tensor is read-only");
    return const_cast<std::byte*>(bytes_);
  }
  // Of a temporary only the const form applies, so that reading a borrowed one is not taken for
  // writing.
  template <typename T>
  const T* data() const& {
    GRAFT_CHECK(DTypeOf<T>::value == dtype_, "asked for the wrong element type of a {} tensor",
                dtype_name(dtype_));
    return reinterpret_cast<const T*>(bytes_);
  }
  template <typename T>
  T* data() & {
    GRAFT_CHECK(DTypeOf<T>::value == dtype_, "asked for the wrong element type of a {} tensor",
                dtype_name(dtype_));
    return reinterpret_cast<T*>(mutable_bytes());
  }
  template <typename T>
  std::span<const T> span() const {
    return {data<T>(), static_cast<size_t>(elements_)};
  }

  Tensor reshaped(Shape shape) const;             // the same bytes; the element counts must agree
  Tensor as(DType dtype) const;                   // converted; itself if it is of that type already
  Tensor clone() const;                           // owned, aligned copy
  Tensor aligned() const;                         // itself if 64-byte aligned, else a clone
  Tensor rows(int64_t begin, int64_t end) const;  // a view of a range of the slowest axis

 private:
  DType dtype_ = DType::kF32;
  Shape shape_;
  int64_t elements_ = 0;
  const std::byte* bytes_ = nullptr;
  std::shared_ptr<const void> owner_;
  bool writable_ = false;
};

}  // namespace graft
