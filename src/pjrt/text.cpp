#include "pjrt/text.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace graft::pjrt {
namespace {

// Bits of one float as MLIR writes them: hexadecimal, so that every value is exact.
std::string float_bits(double value, DType dtype) {
  switch (dtype) {
    case DType::kF64: return fmt::format("0x{:016X}", std::bit_cast<uint64_t>(value));
    case DType::kF32:
      return fmt::format("0x{:08X}", std::bit_cast<uint32_t>(static_cast<float>(value)));
    case DType::kBF16: return fmt::format("0x{:04X}", f32_to_bf16(static_cast<float>(value)));
    case DType::kF16: return fmt::format("0x{:04X}", f32_to_f16(static_cast<float>(value)));
    default: return fmt::format("0x{:02X}", f32_to_f8(dtype, static_cast<float>(value)));
  }
}

int64_t integer_at(const Tensor& value, int64_t i) {
  switch (value.dtype()) {
    case DType::kBool:
    case DType::kU8: return static_cast<int64_t>(value.bytes()[i]);
    case DType::kS8: return static_cast<int8_t>(value.bytes()[i]);
    case DType::kU32: return value.data<uint32_t>()[i];
    case DType::kS32: return value.data<int32_t>()[i];
    case DType::kS64: return value.data<int64_t>()[i];
    case DType::kU4:
    case DType::kS4: {
      const auto byte = static_cast<uint8_t>(value.bytes()[i / 2]);
      const int nibble = i % 2 == 0 ? byte & 15 : byte >> 4;
      return value.dtype() == DType::kS4 && nibble > 7 ? nibble - 16 : nibble;
    }
    default: GRAFT_CHECK(false, "not an integer type"); return 0;
  }
}

// Elements one by one, in nested brackets as their shape.
void append_nested(const Tensor& value, size_t axis, int64_t& next, std::string& text) {
  if (axis == value.shape().size()) {
    const int64_t v = integer_at(value, next++);
    text += value.dtype() == DType::kBool ? (v != 0 ? "true" : "false") : std::to_string(v);
    return;
  }
  text += '[';
  for (int64_t i = 0; i < value.shape()[axis]; ++i) {
    if (i > 0) text += ", ";
    append_nested(value, axis + 1, next, text);
  }
  text += ']';
}

}  // namespace

std::string element_type(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "i1";
    case DType::kU4: return "ui4";
    case DType::kS4: return "i4";
    case DType::kU8: return "ui8";
    case DType::kS8: return "i8";
    case DType::kU32: return "ui32";
    case DType::kS32: return "i32";
    case DType::kS64: return "i64";
    case DType::kF8E4M3FN: return "f8E4M3FN";
    case DType::kF8E5M2: return "f8E5M2";
    case DType::kF8E4M3FNUZ: return "f8E4M3FNUZ";
    case DType::kF8E5M2FNUZ: return "f8E5M2FNUZ";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kF32: return "f32";
    case DType::kF64: return "f64";
  }
  return "";
}

std::string tensor_type(const Type& type) {
  std::string text = "tensor<";
  for (int64_t extent : type.shape) text += std::to_string(extent) + "x";
  return text + element_type(type.dtype) + ">";
}

std::string integers(std::span<const int64_t> values) {
  return fmt::format("{}", fmt::join(values, ", "));
}

std::string i64_array(std::span<const int64_t> values) {
  return values.empty() ? "array<i64>" : "array<i64: " + integers(values) + ">";
}

std::string dense_splat(double value, const Type& type) {
  std::string element;
  if (type.dtype == DType::kBool) {
    element = value != 0 ? "true" : "false";
  } else if (is_float(type.dtype)) {
    element = float_bits(value, type.dtype);
  } else {
    element = fmt::format("{:.0f}", value);
  }
  if (type.elements() == 0) element.clear();
  return "dense<" + element + "> : " + tensor_type(type);
}

std::string dense_literal(const Tensor& value) {
  const Type type{value.dtype(), value.shape()};
  std::string text;
  if (value.elements() == 0) {
    // dense<> : nothing
  } else if (value.dtype() == DType::kBool || dtype_bits(value.dtype()) < 8) {
    int64_t next = 0;
    append_nested(value, 0, next, text);
  } else {
    text = "\"0x";
    text.reserve(value.size_bytes() * 2 + 8);
    constexpr const char* kDigits = "0123456789ABCDEF";
    for (size_t i = 0; i < value.size_bytes(); ++i) {
      const auto byte = static_cast<uint8_t>(value.bytes()[i]);
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
    text += '"';
  }
  return "dense<" + text + "> : " + tensor_type(type);
}

}  // namespace graft::pjrt
