#include "pjrt/emitter_state.h"

#include <limits>
#include <utility>

#include "pjrt/text.h"
#include "sharding/sdy.h"

namespace graft::pjrt {

std::string operand_list(std::span<const Text> values) {
  std::string text = "(";
  for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? ", " : "") + values[i].name;
  return text + ")";
}

std::string function_type(std::span<const Text> operands, std::span<const Type> results) {
  std::string text = "(";
  for (size_t i = 0; i < operands.size(); ++i) {
    text += (i > 0 ? ", " : "") + tensor_type(operands[i].type);
  }
  text += ") -> (";
  for (size_t i = 0; i < results.size(); ++i) text += (i > 0 ? ", " : "") + tensor_type(results[i]);
  return text + ")";
}

double least_value(DType dtype) {
  if (is_float(dtype)) return -std::numeric_limits<double>::infinity();
  switch (dtype) {
    case DType::kS8: return std::numeric_limits<int8_t>::min();
    case DType::kS32: return std::numeric_limits<int32_t>::min();
    case DType::kS64: return static_cast<double>(std::numeric_limits<int64_t>::min());
    case DType::kS4: return -8;
    default: return 0;
  }
}

std::string Emitter::fresh() { return fmt::format("%{}", next_++); }

Text Emitter::op(std::string_view name, std::span<const Text> operands, std::string_view attributes,
                 const Type& result) {
  return op_with_regions(name, operands, attributes, {}, std::span(&result, 1))[0];
}

std::vector<Text> Emitter::op_with_regions(std::string_view name, std::span<const Text> operands,
                                           std::string_view attributes,
                                           const std::vector<std::string>& regions,
                                           std::span<const Type> results) {
  std::vector<Text> defined;
  if (results.size() > 1) {
    const std::string base = fresh();
    text_ += fmt::format("{}:{} = ", base, results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      defined.push_back({fmt::format("{}#{}", base, i), results[i]});
    }
  } else if (results.size() == 1) {
    defined.push_back({fresh(), results[0]});
    text_ += defined[0].name + " = ";
  }
  text_ += fmt::format("\"stablehlo.{}\"{}", name, operand_list(operands));
  if (!attributes.empty()) text_ += fmt::format(" <{{{}}}>", attributes);
  if (!regions.empty()) text_ += fmt::format(" ({})", fmt::join(regions, ", "));
  text_ += " : " + function_type(operands, results) + "\n";
  return defined;
}

Text Emitter::splat(double value, const Type& type) {
  return op("constant", {}, "value = " + dense_splat(value, type), type);
}

Text Emitter::convert(const Text& x, DType dtype) {
  if (x.type.dtype == dtype) return x;
  return op("convert", {x}, "", {dtype, x.type.shape});
}

Text Emitter::constrain(const Text& x, const PartitionSpec& spec) {
  Text constrained{fresh(), x.type};
  text_ +=
      sdy_constraint(constrained.name, x.name, tensor_type(x.type), spec, x.type.shape.size()) +
      "\n";
  return constrained;
}

std::string Emitter::region(std::span<const Type> arguments,
                            const std::function<std::vector<Text>(std::span<const Text>)>& fill) {
  std::string outer = std::exchange(text_, {});
  std::vector<Text> values;
  std::string header;
  for (const Type& type : arguments) {
    values.push_back({fresh(), type});
    header += (header.empty() ? "" : ", ") + values.back().name + ": " + tensor_type(type);
  }
  if (!arguments.empty()) header = "^bb0(" + header + "):\n";
  const std::vector<Text> returned = fill(values);
  text_ +=
      "\"stablehlo.return\"" + operand_list(returned) + " : " + function_type(returned, {}) + "\n";
  std::string whole = "{\n" + header + std::exchange(text_, std::move(outer)) + "}";
  return whole;
}

std::string Emitter::binary_region(std::string_view name, DType dtype) {
  const Type scalar{dtype, {}};
  return region(std::vector<Type>{scalar, scalar}, [&](std::span<const Text> x) {
    return std::vector<Text>{op(name, {x[0], x[1]}, "", scalar)};
  });
}

std::string Emitter::descending_region(DType dtype) {
  const Type scalar{dtype, {}}, position{DType::kS32, {}}, truth{DType::kBool, {}};
  const auto compare = [&](const Text& a, const Text& b, std::string_view direction) {
    return op("compare", {a, b},
              fmt::format("comparison_direction = #stablehlo<comparison_direction {}>", direction),
              truth);
  };
  return region(
      std::vector<Type>{scalar, scalar, position, position}, [&](std::span<const Text> x) {
        Text before = compare(x[0], x[1], "GT");
        if (is_float(dtype)) {
          const Text first_nan = compare(x[0], x[0], "NE"),
                     second_number = compare(x[1], x[1], "EQ");
          before = op("or", {before, op("and", {first_nan, second_number}, "", truth)}, "", truth);
        }
        return std::vector<Text>{before};
      });
}

std::vector<Text> Emitter::body(const Graph& graph, std::span<const Text> inputs) {
  auto outer_values = std::exchange(values_, {});
  GRAFT_CHECK(inputs.size() == graph.inputs().size());
  for (size_t i = 0; i < inputs.size(); ++i) values_[graph.inputs()[i].value] = inputs[i];
  for (const Node& node : graph.nodes()) emit_node(*this, graph, node);
  std::vector<Text> outputs;
  for (const Output& output : graph.outputs()) outputs.push_back(values_.at(output.value));
  values_ = std::move(outer_values);
  return outputs;
}

Text Emitter::operand(const Node& node, size_t i) const { return values_.at(node.operands.at(i)); }

std::vector<Text> Emitter::operands(const Node& node) const {
  std::vector<Text> values;
  for (ValueId id : node.operands) values.push_back(values_.at(id));
  return values;
}

}  // namespace graft::pjrt
