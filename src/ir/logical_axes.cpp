#include "ir/logical_axes.h"

#include "base/error.h"
#include "ir/autodiff.h"
#include "ir/shape_rules.h"

namespace graft {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> axes(1);
  for (const char c : text) {
    if (c == ',') axes.emplace_back();
    else axes.back() += c;
  }
  return axes;
}

std::vector<Type> infer_logical_axes(const Call& call) {
  expect_operands(kLogicalAxes, call, 1);
  const Type& x = call.operands[0];
  const size_t axes = split(call.attributes.text("axes")).size();
  if (axes != x.shape.size()) {
    refuse(kLogicalAxes, call, fmt::format("{} axes must be one a dimension", axes));
  }
  return {x};
}

}  // namespace

const Op kLogicalAxes{.name = "logical_axes",
                      .primitive = true,
                      .infer = infer_logical_axes,
                      .gradient = [](GradientContext& c) {
                        c.set(0, c.graph().add1(kLogicalAxes, {c.cotangent(0)}, c.attributes()));
                      }};

Value with_logical_axes(Value x, const std::vector<std::string>& axes) {
  std::string text;
  for (size_t i = 0; i < axes.size(); ++i) text += (i == 0 ? "" : ",") + axes[i];
  return x.graph().add1(kLogicalAxes, {x}, {{"axes", text}});
}

std::vector<std::string> logical_axes_of(const Node& node) {
  GRAFT_CHECK(node.op == &kLogicalAxes);
  return split(node.attributes.text("axes"));
}

}  // namespace graft
