#pragma once
// Packed matrices (base/packed.h) in the graph.
//
// An operation that takes a weight (linear, embedding, cross entropy) takes it dense, or packed: a
// u8 value of layout.stored_shape(), with the layout as the operation's attribute `packed`
// (PackedLayout::text()). A kernel expands what it needs, tile by tile; the decomposition expands
// the weight with unpack(), in primitives that a compiler fuses: codes come out of bytes by shifts,
// levels by selects, scales by arithmetic on their bits.

#include <optional>

#include "base/packed.h"
#include "ir/graph.h"

namespace graft {

inline constexpr const char* kPackedAttribute = "packed";

// The matrix, [rows, columns] of a float type; the same bits as expand_packed in f32.
Value unpack(const PackedLayout& layout, Value packed, DType dtype = DType::kF32);

// A weight as an operation takes it.
struct Weight {
  Value value;
  std::optional<PackedLayout> layout;  // none: dense

  Weight() = default;
  Weight(Value v) : value(v) {}  // NOLINT: a dense weight is just its value
  Weight(Value v, const PackedLayout& l) : value(v), layout(l) {}
};

// The layout of an operation's weight, if it is packed.
std::optional<PackedLayout> packed_layout(const Attributes& attributes);
void set_packed(Attributes& attributes, const Weight& weight);

// The type of the matrix that an operation's weight stands for: its own if dense, else f32 of the
// logical shape (f64 beside f64, which tests use).
Type weight_type(const Type& stored, const Attributes& attributes);
// The weight as it enters products: itself, or expanded.
Value expanded_weight(Value stored, const Attributes& attributes, DType dtype);

}  // namespace graft
