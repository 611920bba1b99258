// Constants, case, and the list of every primitive.

#include "ir/primitives.h"

#include <array>
#include <unordered_map>

#include "ir/autodiff.h"
#include "ir/logical_axes.h"
#include "ir/passes.h"
#include "ir/scan.h"
#include "ir/shape_rules.h"

namespace graft {
namespace {

std::vector<Type> infer_constant(const Call& call) {
  expect_operands(kConstant, call, 0);
  const Tensor& value = call.attributes.tensor("value");
  return {{value.dtype(), value.shape()}};
}

std::vector<Type> infer_splat(const Call& call) {
  expect_operands(kSplat, call, 0);
  (void)call.attributes.f64("value");
  Type type{call.attributes.dtype("dtype"), call.attributes.integers("shape")};
  element_count(type.shape);  // refuses negative extents
  return {std::move(type)};
}

std::vector<Type> infer_iota(const Call& call) {
  expect_operands(kIota, call, 0);
  Type type{call.attributes.dtype("dtype"), call.attributes.integers("shape")};
  element_count(type.shape);
  const int64_t axis = call.attributes.i64("axis");
  if (axis < 0 || axis >= static_cast<int64_t>(type.shape.size())) {
    throw Error(fmt::format("iota: axis {} does not exist in {}", axis, to_string(type)));
  }
  if ((dtype_kind(type.dtype) & (kFloats | kIntegers)) == 0) {
    throw Error(fmt::format("iota: counts in numbers, not in {}", to_string(type)));
  }
  return {std::move(type)};
}

std::vector<Type> body_results(const Graph& body) {
  std::vector<Type> types;
  for (const Output& output : body.outputs()) types.push_back(body.type(output.value));
  return types;
}

std::string list(const std::vector<Type>& types) {
  std::string text;
  for (const Type& type : types) text += (text.empty() ? "" : ", ") + to_string(type);
  return "(" + text + ")";
}

std::vector<Type> infer_case(const Call& call) {
  if (call.operands.empty() || call.operands[0] != Type{DType::kS32, {}}) {
    refuse(kCase, call, "operand 0 must be an s32 scalar");
  }
  if (call.bodies.empty()) refuse(kCase, call, "needs at least one body");
  const std::vector<Type> expected(call.operands.begin() + 1, call.operands.end());
  const std::vector<Type> results = body_results(*call.bodies[0]);
  for (size_t i = 0; i < call.bodies.size(); ++i) {
    std::vector<Type> inputs;
    for (const Input& input : call.bodies[i]->inputs()) {
      inputs.push_back(call.bodies[i]->type(input.value));
    }
    if (inputs != expected) {
      refuse(kCase, call, fmt::format("body {} takes {}", i, list(inputs)));
    }
    const std::vector<Type> outputs = body_results(*call.bodies[i]);
    if (outputs != results) {
      refuse(
          kCase, call,
          fmt::format("body {} gives {} where body 0 gives {}", i, list(outputs), list(results)));
    }
  }
  return results;
}

// The gradient of one body as a graph: (operands, cotangents of the results `given`) -> cotangents
// of the operands `wanted`. It computes again what it needs of the body's values.
std::shared_ptr<const Graph> case_body_gradient(const Graph& body, const std::vector<size_t>& given,
                                                const std::vector<size_t>& wanted,
                                                const AutodiffOptions& options) {
  auto graph = std::make_shared<Graph>();
  std::unordered_map<ValueId, Value> known;
  std::vector<Value> inputs;
  for (const Input& input : body.inputs()) {
    inputs.push_back(graph->input(input.name, body.type(input.value), input.kind));
    known[input.value] = inputs.back();
  }
  std::vector<ValueId> ids;
  std::vector<Value> cotangents;
  for (size_t result : given) {
    const Output& output = body.outputs()[result];
    ids.push_back(output.value);
    cotangents.push_back(graph->input("d_" + output.name, body.type(output.value)));
  }
  const std::vector<Value> of = copy_values(body, ids, *graph, known);
  std::vector<Value> wrt;
  for (size_t operand : wanted) wrt.push_back(inputs[operand]);
  const std::vector<Value> result = vector_jacobian_product(of, cotangents, wrt, options);
  for (size_t i = 0; i < wanted.size(); ++i) {
    // One body may give an f32 gradient where another gives it in the operand's type.
    graph->output("d_" + body.inputs()[wanted[i]].name, convert(result[i], wrt[i].dtype()));
  }
  return graph;
}

void case_gradient(GradientContext& c) {
  const std::vector<std::shared_ptr<const Graph>> bodies = c.node().bodies;
  std::vector<size_t> given, wanted;  // among the results; among the operands after the index
  std::vector<Value> operands;
  for (size_t i = 0; i < c.operand_count(); ++i) {
    operands.push_back(c.operand(i));
    if (i > 0 && c.needs(i)) wanted.push_back(i - 1);
  }
  for (size_t i = 0; i < bodies[0]->outputs().size(); ++i) {
    if (!c.cotangent(i).defined()) continue;
    given.push_back(i);
    operands.push_back(convert(c.cotangent(i), c.result(i).dtype()));
  }
  std::vector<std::shared_ptr<const Graph>> gradients;
  for (const auto& body : bodies) {
    gradients.push_back(case_body_gradient(*body, given, wanted, c.options()));
  }
  const std::vector<Value> results = c.graph().add(kCase, operands, {}, std::move(gradients));
  for (size_t i = 0; i < wanted.size(); ++i) c.set(wanted[i] + 1, results[i]);
}

}  // namespace

const Op kConstant{.name = "constant", .primitive = true, .infer = infer_constant};
const Op kSplat{.name = "splat", .primitive = true, .infer = infer_splat};
const Op kIota{.name = "iota", .primitive = true, .infer = infer_iota};
const Op kCase{.name = "case", .primitive = true, .infer = infer_case, .gradient = case_gradient};

std::span<const Op* const> primitives() {
  // clang-format off
  static constexpr std::array kAll = {
      &kConstant, &kSplat, &kIota, &kNeg, &kExp, &kLog, &kLog1p, &kSqrt, &kRsqrt, &kTanh,
      &kLogistic, &kCos, &kSin, &kAbs, &kFloor, &kSign, &kNot, &kIsFinite, &kConvert, &kAdd, &kSub,
      &kMul, &kDiv, &kMax, &kMin, &kPow, &kAnd, &kOr, &kXor, &kShiftLeft, &kShiftRight, &kCompare,
      &kSelect, &kBroadcastInDim, &kReshape, &kTranspose, &kSlice, &kPad, &kConcatenate,
      &kDynamicSlice, &kDynamicUpdateSlice, &kReduceSum, &kReduceMax, &kDotGeneral, &kGather,
      &kScatterAdd, &kTopK, &kLogicalAxes, &kScan, &kCase};
  // clang-format on
  return kAll;
}

Value literal(Graph& graph, Tensor value) {
  return graph.add1(kConstant, {}, {{"value", std::move(value)}});
}

Value splat(Graph& graph, double value, Type type) {
  return graph.add1(kSplat, {},
                    {{"value", value}, {"dtype", type.dtype}, {"shape", std::move(type.shape)}});
}

Value scalar(Graph& graph, double value, DType dtype) { return splat(graph, value, {dtype, {}}); }

Value zeros_like(Value x) { return splat(x.graph(), 0, Type(x.type())); }

Value iota(Graph& graph, Type type, int axis) {
  if (axis < 0) axis += static_cast<int>(type.shape.size());
  return graph.add1(kIota, {},
                    {{"dtype", type.dtype}, {"shape", std::move(type.shape)}, {"axis", axis}});
}

std::vector<Value> case_of(Value index, std::span<const Value> operands,
                           std::vector<std::shared_ptr<const Graph>> bodies) {
  std::vector<Value> all = {index};
  all.insert(all.end(), operands.begin(), operands.end());
  return index.graph().add(kCase, all, {}, std::move(bodies));
}

}  // namespace graft
