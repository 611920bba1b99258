#include "ir/shape_rules.h"

#include <algorithm>
#include <string>

namespace graft {

void refuse(const Op& op, const Call& call, std::string_view problem) {
  std::string types;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (i > 0) types += i + 1 == call.operands.size() ? " and " : ", ";
    types += to_string(call.operands[i]);
  }
  if (types.empty()) types = "no operands";
  throw Error(fmt::format("{}: {}, not {}", op.name, problem, types));
}

void expect_operands(const Op& op, const Call& call, size_t count) {
  if (call.operands.size() != count) {
    refuse(op, call, fmt::format("takes {} operand{}", count, count == 1 ? "" : "s"));
  }
}

unsigned dtype_kind(DType dtype) {
  if (dtype == DType::kBool) return kBools;
  if (dtype == DType::kU4 || dtype == DType::kS4) return kPacked;
  if (is_float(dtype)) return kFloats;
  return dtype == DType::kU8 || dtype == DType::kU32 ? kUnsigned : kSigned;
}

void expect_kind(const Op& op, const Call& call, size_t operand, unsigned kinds) {
  if ((dtype_kind(call.operands[operand].dtype) & kinds) != 0) return;
  std::string names;
  const auto name = [&](unsigned kind, std::string_view text) {
    if ((kinds & kind) != kind) return;
    if (!names.empty()) names += " or ";
    names += text;
  };
  name(kFloats, "float");
  name(kIntegers, "integer");
  if ((kinds & kIntegers) != kIntegers) {
    name(kSigned, "signed integer");
    name(kUnsigned, "unsigned integer");
  }
  name(kBools, "bool");
  name(kPacked, "4-bit");
  refuse(op, call, fmt::format("operand {} must be of {} elements", operand, names));
}

void expect_axes(const Op& op, const Call& call, const std::vector<int64_t>& axes, int64_t rank,
                 bool ascending) {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= rank) {
      refuse(op, call, fmt::format("axis {} must lie in [0, {})", axes[i], rank));
    }
    if (std::find(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i), axes[i]) !=
        axes.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse(op, call, fmt::format("axis {} must occur once", axes[i]));
    }
    if (ascending && i > 0 && axes[i] < axes[i - 1]) {
      refuse(op, call, fmt::format("axes {} must ascend", to_string(axes)));
    }
  }
}

std::vector<int64_t> other_axes(int64_t rank, const std::vector<int64_t>& axes) {
  std::vector<int64_t> others;
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) others.push_back(axis);
  }
  return others;
}

}  // namespace graft
