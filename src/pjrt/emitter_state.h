#pragma once
// What the emitter's handlers write with (pjrt/emitter.cpp): the text so far, names for values, and
// the generic form of operations and regions.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "pjrt/emitter.h"

namespace graft::pjrt {

// A value of the text: its name ("%12") and its type.
struct Text {
  std::string name;
  Type type;
};

std::string operand_list(std::span<const Text> values);  // "(%1, %2)"
std::string function_type(std::span<const Text> operands, std::span<const Type> results);

// The least value of a type: minus infinity where it has one.
double least_value(DType dtype);

class Emitter {
 public:
  explicit Emitter(const EmitOptions& options) : options_(options) {}

  const std::string& text() const { return text_; }
  const EmitOptions& options() const { return options_; }

  // Writes one operation of the dialect stablehlo with one result.
  Text op(std::string_view name, std::span<const Text> operands, std::string_view attributes,
          const Type& result);
  Text op(std::string_view name, std::initializer_list<Text> operands, std::string_view attributes,
          const Type& result) {
    return op(name, std::span(operands.begin(), operands.size()), attributes, result);
  }
  std::vector<Text> op_with_regions(std::string_view name, std::span<const Text> operands,
                                    std::string_view attributes,
                                    const std::vector<std::string>& regions,
                                    std::span<const Type> results);
  std::vector<Text> op_with_regions(std::string_view name, std::initializer_list<Text> operands,
                                    std::string_view attributes,
                                    const std::vector<std::string>& regions,
                                    const std::vector<Type>& results) {
    return op_with_regions(name, std::span(operands.begin(), operands.size()), attributes, regions,
                           std::span(results));
  }
  Text splat(double value, const Type& type);
  Text convert(const Text& x, DType dtype);  // x itself if it is of that type

  Text constrain(const Text& x, const PartitionSpec& spec);

  // A region with arguments of these types; `fill` writes its operations and gives what it returns.
  std::string region(std::span<const Type> arguments,
                     const std::function<std::vector<Text>(std::span<const Text>)>& fill);
  std::string binary_region(std::string_view op, DType dtype);  // of reductions
  std::string descending_region(DType dtype);                   // of a sort beside s32 positions

  // Writes the nodes of a graph on these inputs; gives its outputs.
  std::vector<Text> body(const Graph& graph, std::span<const Text> inputs);

  // For handlers: operands by the node's ids, and what its results are.
  Text operand(const Node& node, size_t i) const;
  std::vector<Text> operands(const Node& node) const;
  static Type result(const Graph& graph, const Node& node, size_t i = 0) {
    return graph.type(node.results[i]);
  }
  void define(const Node& node, size_t result, Text value) {
    values_[node.results.at(result)] = std::move(value);
  }

 private:
  std::string fresh();

  const EmitOptions& options_;
  std::string text_;
  int next_ = 0;
  std::unordered_map<ValueId, Text> values_;  // of the graph being written
};

// Writes one node of a lowered graph; see emitter.cpp.
void emit_node(Emitter& emitter, const Graph& graph, const Node& node);

}  // namespace graft::pjrt
