#pragma once
// What shape rules share: refusing operands with a message that names the operation and every type,
// and the checks that most rules begin with.
//
//   expect_operands(op, call, 2);
//   if (call.operands[0] != call.operands[1]) refuse(op, call, "operands must be of one type");
//
// gives "add: operands must be of one type, not f32[2, 3] and f32[3]".

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace graft {

// Raises Error "<operation>: <problem>, not <types of the operands>".
[[noreturn]] void refuse(const Op& op, const Call& call, std::string_view problem);

void expect_operands(const Op& op, const Call& call, size_t count);

// Kinds of element types, to be joined with |. The packed 4-bit types are a kind of their own: they
// are moved and converted, never computed with.
enum DTypeKinds : unsigned {
  kFloats = 1,
  kSigned = 2,
  kUnsigned = 4,
  kIntegers = kSigned | kUnsigned,
  kBools = 8,
  kPacked = 16
};
unsigned dtype_kind(DType dtype);
void expect_kind(const Op& op, const Call& call, size_t operand, unsigned kinds);

// Every axis in [0, rank), none twice, in ascending order if `ascending`.
void expect_axes(const Op& op, const Call& call, const std::vector<int64_t>& axes, int64_t rank,
                 bool ascending);

// 0 .. rank - 1 without `axes`.
std::vector<int64_t> other_axes(int64_t rank, const std::vector<int64_t>& axes);

}  // namespace graft
