#include "pjrt/emitter.h"

#include <algorithm>
#include <unordered_map>

#include "ir/logical_axes.h"
#include "ir/primitives.h"
#include "ir/scan.h"
#include "pjrt/emitter_state.h"
#include "pjrt/text.h"
#include "sharding/resolve.h"
#include "sharding/sdy.h"

namespace graft::pjrt {
namespace {

using Handler = void (*)(Emitter&, const Graph&, const Node&);

// The attribute of argument or result `i`, where it has one.
std::vector<std::string> sharding_attribute(const EmitOptions& options,
                                            const std::vector<std::optional<PartitionSpec>>& specs,
                                            size_t i, const Type& type) {
  if (options.mesh.devices() == 1 || specs.empty() || !specs.at(i)) return {};
  return {"sdy.sharding = " + sdy_sharding(*specs[i], type.shape.size())};
}

// {a, b}, or nothing.
std::string dictionary(const std::vector<std::string>& attributes) {
  return attributes.empty() ? "" : fmt::format(" {{{}}}", fmt::join(attributes, ", "));
}

// ---- Elementwise

const std::unordered_map<const Op*, const char*>& elementwise_names() {
  static const std::unordered_map<const Op*, const char*> names = {
      {&kNeg, "negate"},
      {&kAbs, "abs"},
      {&kFloor, "floor"},
      {&kSign, "sign"},
      {&kNot, "not"},
      {&kIsFinite, "is_finite"},
      {&kAdd, "add"},
      {&kSub, "subtract"},
      {&kMul, "multiply"},
      {&kDiv, "divide"},
      {&kMax, "maximum"},
      {&kMin, "minimum"},
      {&kAnd, "and"},
      {&kOr, "or"},
      {&kXor, "xor"},
      {&kSelect, "select"},
      {&kConvert, "convert"},
      {&kShiftLeft, "shift_left"},
      {&kShiftRight, "shift_right_logical"}};
  return names;
}

// Computed in f32 where the operands are of fewer bits.
const std::unordered_map<const Op*, const char*>& transcendental_names() {
  static const std::unordered_map<const Op*, const char*> names = {
      {&kExp, "exponential"}, {&kLog, "log"},   {&kLog1p, "log_plus_one"}, {&kSqrt, "sqrt"},
      {&kRsqrt, "rsqrt"},     {&kTanh, "tanh"}, {&kLogistic, "logistic"},  {&kCos, "cosine"},
      {&kSin, "sine"},        {&kPow, "power"}};
  return names;
}

bool is_low_precision(DType dtype) { return is_float(dtype) && dtype_bits(dtype) < 32; }

void emit_elementwise(Emitter& e, const Graph& g, const Node& node) {
  e.define(node, 0, e.op(elementwise_names().at(node.op), e.operands(node), "", e.result(g, node)));
}

void emit_transcendental(Emitter& e, const Graph& g, const Node& node) {
  const Type type = e.result(g, node);
  std::vector<Text> operands = e.operands(node);
  Type wide = type;
  if (is_low_precision(type.dtype)) {
    wide.dtype = DType::kF32;
    for (Text& x : operands) x = e.convert(x, DType::kF32);
  }
  e.define(node, 0,
           e.convert(e.op(transcendental_names().at(node.op), operands, "", wide), type.dtype));
}

void emit_compare(Emitter& e, const Graph& g, const Node& node) {
  e.define(node, 0,
           e.op("compare", e.operands(node),
                fmt::format("comparison_direction = #stablehlo<comparison_direction {}>",
                            node.attributes.text("direction")),
                e.result(g, node)));
}

// ---- Constants and shapes

void emit_constant(Emitter& e, const Graph& g, const Node& node) {
  const Type type = e.result(g, node);
  const std::string value = node.op == &kSplat ? dense_splat(node.attributes.f64("value"), type)
                                               : dense_literal(node.attributes.tensor("value"));
  e.define(node, 0, e.op("constant", {}, "value = " + value, type));
}

void emit_iota(Emitter& e, const Graph& g, const Node& node) {
  const Type type = e.result(g, node);
  e.define(node, 0,
           e.op("iota", {}, fmt::format("iota_dimension = {} : i64", node.attributes.i64("axis")),
                type));
}

void emit_shape(Emitter& e, const Graph& g, const Node& node) {
  const Attributes& a = node.attributes;
  std::string name(node.op->name), text;
  if (node.op == &kBroadcastInDim) {
    text = "broadcast_dimensions = " + i64_array(a.integers("dims"));
  } else if (node.op == &kTranspose) {
    text = "permutation = " + i64_array(a.integers("permutation"));
  } else if (node.op == &kSlice) {
    text = fmt::format("start_indices = {}, limit_indices = {}, strides = {}",
                       i64_array(a.integers("start")), i64_array(a.integers("limit")),
                       i64_array(a.integers("stride")));
  } else if (node.op == &kPad) {
    const std::vector<int64_t> none(a.integers("low").size(), 0);
    text =
        fmt::format("edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
                    i64_array(a.integers("low")), i64_array(a.integers("high")), i64_array(none));
  } else if (node.op == &kConcatenate) {
    text = fmt::format("dimension = {} : i64", a.i64("axis"));
  } else if (node.op == &kDynamicSlice) {
    text = "slice_sizes = " + i64_array(a.integers("sizes"));
  }
  e.define(node, 0, e.op(name, e.operands(node), text, e.result(g, node)));
}

// ---- Reductions and products

void emit_reduce(Emitter& e, const Graph& g, const Node& node) {
  const Type type = e.result(g, node);
  Text x = e.operand(node, 0);
  Type wide = type;
  if (is_low_precision(type.dtype)) {
    wide.dtype = DType::kF32;
    x = e.convert(x, DType::kF32);
  }
  const bool sum = node.op == &kReduceSum;
  const Text init = e.splat(sum ? 0 : least_value(wide.dtype), {wide.dtype, {}});
  const Text reduced = e.op_with_regions(
      "reduce", {x, init}, "dimensions = " + i64_array(node.attributes.integers("axes")),
      {e.binary_region(sum ? "add" : "maximum", wide.dtype)}, {wide})[0];
  e.define(node, 0, e.convert(reduced, type.dtype));
}

void emit_dot(Emitter& e, const Graph& g, const Node& node) {
  const Attributes& a = node.attributes;
  const Type type = e.result(g, node);
  Type wide = type;
  if (type.dtype != DType::kF64) wide.dtype = DType::kF32;
  e.define(node, 0,
           e.convert(
               e.op("dot_general", e.operands(node),
                    fmt::format(
                        "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [{}], "
                        "rhs_batching_dimensions = [{}], lhs_contracting_dimensions = [{}], "
                        "rhs_contracting_dimensions = [{}]>, precision_config = "
                        "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]",
                        integers(a.integers("lhs_batch")), integers(a.integers("rhs_batch")),
                        integers(a.integers("lhs_contract")), integers(a.integers("rhs_contract"))),
                    wide),
               type.dtype));
}

// ---- Placement

void emit_logical_axes(Emitter& e, const Graph&, const Node& node) {
  const EmitOptions& options = e.options();
  const Text x = e.operand(node, 0);
  if (options.mesh.devices() == 1) {
    e.define(node, 0, x);
    return;
  }
  const PartitionSpec spec = logical_to_mesh(logical_axes_of(node), options.rules, options.mesh);
  e.define(node, 0, e.constrain(x, spec));
}

// ---- Rows

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> values;
  for (int64_t i = begin; i < end; ++i) values.push_back(i);
  return values;
}

void emit_gather(Emitter& e, const Graph& g, const Node& node) {
  const Shape& table = g.type(node.operands[0]).shape;
  const auto index_rank = static_cast<int64_t>(g.type(node.operands[1]).shape.size());
  const auto row_rank = static_cast<int64_t>(table.size()) - 1;
  std::vector<int64_t> sizes = table;
  sizes[0] = 1;
  e.define(node, 0,
           e.op("gather", e.operands(node),
                fmt::format("dimension_numbers = #stablehlo.gather<offset_dims = [{}], "
                            "collapsed_slice_dims = [0], start_index_map = [0], "
                            "index_vector_dim = {}>, slice_sizes = {}, indices_are_sorted = false",
                            integers(range(index_rank, index_rank + row_rank)), index_rank,
                            i64_array(sizes)),
                e.result(g, node)));
}

void emit_scatter_add(Emitter& e, const Graph& g, const Node& node) {
  const Type type = e.result(g, node);
  std::vector<Text> operands = e.operands(node);
  Type wide = type;
  if (is_low_precision(type.dtype)) {
    wide.dtype = DType::kF32;
    operands[0] = e.convert(operands[0], DType::kF32);
    operands[2] = e.convert(operands[2], DType::kF32);
  }
  const Text added = e.op_with_regions(
      "scatter", operands,
      fmt::format("indices_are_sorted = false, unique_indices = false, scatter_dimension_numbers = "
                  "#stablehlo.scatter<update_window_dims = [{}], inserted_window_dims = [0], "
                  "scatter_dims_to_operand_dims = [0], index_vector_dim = 1>",
                  integers(range(1, static_cast<int64_t>(type.shape.size())))),
      {e.binary_region("add", wide.dtype)}, std::span(&wide, 1))[0];
  e.define(node, 0, e.convert(added, type.dtype));
}

// A stable sort, largest first, NaN before everything.
void emit_top_k(Emitter& e, const Graph& g, const Node& node) {
  const Type type = g.type(node.operands[0]);
  const auto axis = static_cast<int64_t>(type.shape.size()) - 1;
  const Type index_type{DType::kS32, type.shape};
  const Text positions =
      e.op("iota", {}, fmt::format("iota_dimension = {} : i64", axis), index_type);
  const std::vector<Text> sorted =
      e.op_with_regions("sort", {e.operand(node, 0), positions},
                        fmt::format("dimension = {} : i64, is_stable = true", axis),
                        {e.descending_region(type.dtype)}, {type, index_type});
  std::vector<int64_t> start(type.shape.size(), 0), limit = type.shape,
                                                    stride(type.shape.size(), 1);
  limit.back() = node.attributes.i64("k");
  const std::string attributes = fmt::format("start_indices = {}, limit_indices = {}, strides = {}",
                                             i64_array(start), i64_array(limit), i64_array(stride));
  for (size_t i = 0; i < 2; ++i) {
    e.define(node, i, e.op("slice", {sorted[i]}, attributes, e.result(g, node, i)));
  }
}

// ---- Control

void emit_case(Emitter& e, const Graph& g, const Node& node) {
  const auto last = static_cast<double>(node.bodies.size()) - 1;
  const Type scalar{DType::kS32, {}};
  const std::vector<Text> operands = e.operands(node);
  // StableHLO gives an index out of range to the last branch; ours is clamped.
  const Text index =
      e.op("clamp", {e.splat(0, scalar), operands[0], e.splat(last, scalar)}, "", scalar);
  std::vector<std::string> regions;
  for (const auto& body : node.bodies) {
    regions.push_back(e.region(
        {}, [&](std::span<const Text>) { return e.body(*body, std::span(operands).subspan(1)); }));
  }
  std::vector<Type> types;
  for (ValueId id : node.results) types.push_back(g.type(id));
  const std::vector<Text> results = e.op_with_regions("case", {index}, "", regions, types);
  for (size_t i = 0; i < results.size(); ++i) e.define(node, i, results[i]);
}

Text slice_of(Emitter& e, const Text& stack, const Text& index) {
  Type slice = stack.type;
  slice.shape[0] = 1;
  std::vector<Text> operands{stack, index};
  const Text zero = e.splat(0, {DType::kS32, {}});
  for (size_t axis = 1; axis < stack.type.shape.size(); ++axis) operands.push_back(zero);
  const Text part =
      e.op("dynamic_slice", operands, "slice_sizes = " + i64_array(slice.shape), slice);
  slice.shape.erase(slice.shape.begin());
  return e.op("reshape", {part}, "", slice);
}

Text put_slice(Emitter& e, const Text& stack, Text slice, const Text& index) {
  Type type = slice.type;
  type.shape.insert(type.shape.begin(), 1);
  slice = e.op("reshape", {slice}, "", type);
  std::vector<Text> operands{stack, slice, index};
  const Text zero = e.splat(0, {DType::kS32, {}});
  for (size_t axis = 1; axis < stack.type.shape.size(); ++axis) operands.push_back(zero);
  return e.op("dynamic_update_slice", operands, "", stack.type);
}

// The value of the input whose place an output takes, or -1.
int replaced_operand(const Graph& graph, ValueId value) {
  for (const Output& output : graph.outputs()) {
    if (output.value != value || output.donated_input < 0) continue;
    return graph.inputs()[static_cast<size_t>(output.donated_input)].value;
  }
  return -1;
}

// The state of the loop: counter, carries, invariants, stacked operands, stacked results. A stacked
// result that takes the place of a stacked operand shares its storage and stands there only once.
void emit_scan(Emitter& e, const Graph& g, const Node& node) {
  const ScanLayout layout = ScanLayout::of(node);
  GRAFT_CHECK(layout.lists_in == 0 && layout.lists_out == 0, "lists are lowered before");
  const Type scalar{DType::kS32, {}};
  std::vector<Text> state{e.splat(0, scalar)};
  for (const Text& operand : e.operands(node)) state.push_back(operand);
  const auto carries = static_cast<size_t>(layout.carries),
             stacked_in = static_cast<size_t>(layout.stacked_in),
             stacked_out = static_cast<size_t>(layout.stacked_out);
  const size_t first_stacked = 1 + carries + static_cast<size_t>(layout.invariants);
  std::vector<size_t> place_of_out;  // in the state
  for (size_t k = 0; k < stacked_out; ++k) {
    const int replaced = replaced_operand(g, node.results[carries + k]);
    const auto first = node.operands.begin() + static_cast<std::ptrdiff_t>(first_stacked) - 1;
    const auto at = std::find(first, node.operands.end(), replaced);
    if (replaced >= 0 && at != node.operands.end()) {
      place_of_out.push_back(first_stacked + static_cast<size_t>(at - first));
      continue;
    }
    place_of_out.push_back(state.size());
    state.push_back(e.splat(0, g.type(node.results[carries + k])));
  }
  std::vector<Type> types;
  for (const Text& s : state) types.push_back(s.type);

  const std::string condition = e.region(types, [&](std::span<const Text> s) {
    return std::vector<Text>{
        e.op("compare", {s[0], e.splat(static_cast<double>(layout.length), scalar)},
             "comparison_direction = #stablehlo<comparison_direction LT>", {DType::kBool, {}})};
  });
  const std::string body = e.region(types, [&](std::span<const Text> s) {
    Text index = s[0];
    if (layout.reverse) {
      index = e.op("subtract", {e.splat(static_cast<double>(layout.length - 1), scalar), s[0]}, "",
                   scalar);
    }
    std::vector<Text> inputs(s.begin() + 1, s.begin() + static_cast<std::ptrdiff_t>(first_stacked));
    for (size_t k = 0; k < stacked_in; ++k) {
      inputs.push_back(slice_of(e, s[first_stacked + k], index));
    }
    const std::vector<Text> outputs = e.body(*node.bodies[0], inputs);
    std::vector<Text> next(s.begin(), s.end());
    next[0] = e.op("add", {s[0], e.splat(1, scalar)}, "", scalar);
    for (size_t k = 0; k < carries; ++k) next[1 + k] = outputs[k];
    for (size_t k = 0; k < stacked_out; ++k) {
      Text& stack = next[place_of_out[k]];
      stack = put_slice(e, stack, outputs[carries + k], index);
    }
    return next;
  });
  const std::vector<Text> results = e.op_with_regions("while", state, "", {condition, body}, types);
  for (size_t k = 0; k < carries; ++k) e.define(node, k, results[1 + k]);
  for (size_t k = 0; k < stacked_out; ++k) e.define(node, carries + k, results[place_of_out[k]]);
}

const std::unordered_map<const Op*, Handler>& handlers() {
  static const std::unordered_map<const Op*, Handler> table = [] {
    std::unordered_map<const Op*, Handler> t = {
        {&kConstant, emit_constant},       {&kSplat, emit_constant},   {&kIota, emit_iota},
        {&kCompare, emit_compare},         {&kReduceSum, emit_reduce}, {&kReduceMax, emit_reduce},
        {&kDotGeneral, emit_dot},          {&kGather, emit_gather},    {&kTopK, emit_top_k},
        {&kScatterAdd, emit_scatter_add},  {&kScan, emit_scan},        {&kCase, emit_case},
        {&kLogicalAxes, emit_logical_axes}};
    for (const auto& [op, name] : elementwise_names()) t[op] = emit_elementwise;
    for (const auto& [op, name] : transcendental_names()) t[op] = emit_transcendental;
    for (const Op* op : {&kBroadcastInDim, &kReshape, &kTranspose, &kSlice, &kPad, &kConcatenate,
                         &kDynamicSlice, &kDynamicUpdateSlice}) {
      t[op] = emit_shape;
    }
    return t;
  }();
  return table;
}

}  // namespace

void emit_node(Emitter& emitter, const Graph& graph, const Node& node) {
  const auto handler = handlers().find(node.op);
  GRAFT_CHECK(handler != handlers().end(), "{} is not lowered", node.op->name);
  handler->second(emitter, graph, node);
}

std::string emit_stablehlo(const Graph& graph, const EmitOptions& options) {
  std::unordered_map<int, size_t> output_of_input;  // which output takes an input's place
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const int input = graph.outputs()[i].donated_input;
    if (input >= 0) output_of_input[input] = i;
  }
  Emitter emitter(options);
  std::vector<Text> inputs;
  std::vector<std::string> parameters, result_types;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Type& type = graph.type(graph.inputs()[i].value);
    inputs.push_back({fmt::format("%arg{}", i), type});
    std::vector<std::string> attributes = sharding_attribute(options, options.input_specs, i, type);
    if (const auto it = output_of_input.find(static_cast<int>(i)); it != output_of_input.end()) {
      attributes.push_back(fmt::format("tf.aliasing_output = {} : i32", it->second));
    }
    parameters.push_back(inputs.back().name + ": " + tensor_type(type) + dictionary(attributes));
  }
  const std::vector<Text> outputs = emitter.body(graph, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto attributes = sharding_attribute(options, options.output_specs, i, outputs[i].type);
    result_types.push_back(tensor_type(outputs[i].type) + dictionary(attributes));
  }
  std::string text = "module @" + options.name + " {\n";
  if (options.mesh.devices() > 1) text += sdy_mesh(options.mesh) + "\n";
  text += fmt::format("func.func public @main({}) -> ({}) {{\n", fmt::join(parameters, ", "),
                      fmt::join(result_types, ", "));
  text += emitter.text();
  text +=
      "\"func.return\"" + operand_list(outputs) + " : " + function_type(outputs, {}) + "\n}\n}\n";
  return text;
}

}  // namespace graft::pjrt
