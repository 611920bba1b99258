#include "ir/interpreter.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "ir/primitives.h"
#include "ir/reference_kernel.h"
#include "ir/scan.h"

namespace graft {
namespace reference {

Array Array::zeros(Type type) {
  Array array{std::move(type), {}, {}};
  const auto count = static_cast<size_t>(array.elements());
  if (array.is_float()) {
    array.floats.resize(count);
  } else {
    array.integers.resize(count);
  }
  return array;
}

namespace {

using ArrayPtr = std::shared_ptr<const Array>;  // shared by the values that alias it; never changed
using Arrays = std::vector<ArrayPtr>;

bool is_packed(DType dtype) { return dtype == DType::kU4 || dtype == DType::kS4; }

template <typename T>
void copy_bytes(const Tensor& from, std::vector<T>& to) {
  if (!to.empty()) std::memcpy(to.data(), from.bytes(), to.size() * sizeof(T));
}

// A tensor as an array of the given dtype, which may differ from the tensor's among floats.
Array array_from(const Tensor& tensor, DType dtype) {
  Array array = Array::zeros({dtype, tensor.shape()});
  if (array.is_float()) {
    copy_bytes(tensor.as(DType::kF64), array.floats);
  } else if (is_packed(dtype)) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.bytes());
    for (size_t i = 0; i < array.integers.size(); ++i) {
      array.integers[i] = wrap(bytes[i / 2] >> (i % 2 * 4), dtype);
    }
  } else {
    copy_bytes(tensor.as(DType::kS64), array.integers);
  }
  return array;
}

Tensor tensor_from(const Array& array, InterpreterOptions options) {
  const DType dtype = array.type.dtype;
  if (array.is_float()) {
    Tensor tensor = Tensor::empty(DType::kF64, array.type.shape);
    std::copy(array.floats.begin(), array.floats.end(), tensor.data<double>());
    return options.precision == InterpreterOptions::kF64 ? tensor : tensor.as(dtype);
  }
  if (is_packed(dtype)) {
    Tensor tensor = Tensor::zeros(dtype, array.type.shape);
    auto* bytes = reinterpret_cast<uint8_t*>(tensor.mutable_bytes());
    for (size_t i = 0; i < array.integers.size(); ++i) {
      bytes[i / 2] |= static_cast<uint8_t>((array.integers[i] & 0xF) << (i % 2 * 4));
    }
    return tensor;
  }
  Tensor tensor = Tensor::empty(DType::kS64, array.type.shape);
  std::copy(array.integers.begin(), array.integers.end(), tensor.data<int64_t>());
  return tensor.as(dtype);
}

const KernelTable& kernels() {
  static const KernelTable table = [] {
    KernelTable all;
    add_elementwise_kernels(all);
    add_shape_kernels(all);
    add_reduction_kernels(all);
    add_index_kernels(all);
    return all;
  }();
  return table;
}

void round_to_declared(Array& array) {
  const DType dtype = array.type.dtype;
  if (dtype == DType::kF64) return;
  for (double& x : array.floats) {
    x = dtype == DType::kF32 ? static_cast<double>(static_cast<float>(x))
                             : round_to_dtype(x, dtype);
  }
}

class Interpreter {
 public:
  explicit Interpreter(InterpreterOptions options) : options_(options) {}

  Arrays run(const Graph& graph, const Arrays& inputs) const {
    Arrays values(static_cast<size_t>(graph.value_count()));
    const auto at = [&](ValueId id) -> ArrayPtr& { return values[static_cast<size_t>(id)]; };
    for (size_t i = 0; i < inputs.size(); ++i) at(graph.inputs()[i].value) = inputs[i];
    const std::vector<size_t> last_use = last_uses(graph);
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      const Node& node = graph.nodes()[n];
      Arrays operands;
      std::vector<Type> types;
      for (ValueId id : node.operands) operands.push_back(at(id));
      for (ValueId id : node.results) types.push_back(graph.type(id));
      const Arrays results = run_node(node, operands, types);
      for (size_t i = 0; i < results.size(); ++i) at(node.results[i]) = results[i];
      for (ValueId id : node.operands) {
        if (last_use[static_cast<size_t>(id)] == n) at(id).reset();
      }
    }
    Arrays outputs;
    for (const Output& output : graph.outputs()) outputs.push_back(at(output.value));
    return outputs;
  }

 private:
  // The index of the last node that reads each value; beyond the last for outputs.
  static std::vector<size_t> last_uses(const Graph& graph) {
    std::vector<size_t> last(static_cast<size_t>(graph.value_count()), graph.nodes().size());
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      for (ValueId id : graph.nodes()[n].operands) last[static_cast<size_t>(id)] = n;
    }
    for (const Output& output : graph.outputs()) {
      last[static_cast<size_t>(output.value)] = graph.nodes().size();
    }
    return last;
  }

  Arrays run_node(const Node& node, const Arrays& operands, const std::vector<Type>& types) const {
    if (node.op == &kScan) return run_scan(node, operands, types);
    if (node.op == &kCase) return run_case(node, operands);
    if (node.op == &kConstant) {
      Array literal = array_from(node.attributes.tensor("value"), types[0].dtype);
      return {std::make_shared<Array>(std::move(literal))};
    }
    if (!node.op->primitive) return run_composite(node, operands);

    const auto kernel = kernels().find(node.op);
    GRAFT_CHECK(kernel != kernels().end(), "the interpreter has no {}", node.op->name);
    std::vector<const Array*> in;
    for (const ArrayPtr& operand : operands) in.push_back(operand.get());
    std::vector<Array> out;
    for (const Type& type : types) out.push_back(Array::zeros(type));
    kernel->second({node, in, out});
    Arrays results;
    for (Array& array : out) {
      if (options_.precision == InterpreterOptions::kDeclared) round_to_declared(array);
      results.push_back(std::make_shared<Array>(std::move(array)));
    }
    return results;
  }

  Arrays run_composite(const Node& node, const Arrays& operands) const {
    GRAFT_CHECK(node.op->decompose != nullptr, "{} has no decomposition", node.op->name);
    Graph graph;
    std::vector<Value> inputs;
    std::vector<Type> types;
    for (const ArrayPtr& operand : operands) {
      inputs.push_back(graph.input("", operand->type));
      types.push_back(operand->type);
    }
    const std::vector<Value> results =
        node.op->decompose(graph, inputs, {types, node.attributes, node.bodies});
    for (Value result : results) graph.output("", result);
    return run(graph, operands);
  }

  Arrays run_case(const Node& node, const Arrays& operands) const {
    const auto last = static_cast<int64_t>(node.bodies.size()) - 1;
    const int64_t index = std::clamp<int64_t>(operands[0]->integers[0], 0, last);
    return run(*node.bodies[static_cast<size_t>(index)],
               Arrays(operands.begin() + 1, operands.end()));
  }

  // The i-th slice of a stacked array.
  static ArrayPtr slice_of(const Array& stacked, int64_t i) {
    const Shape& shape = stacked.type.shape;
    Array slice = Array::zeros({stacked.type.dtype, Shape(shape.begin() + 1, shape.end())});
    const int64_t begin = i * slice.elements();
    with_elements(stacked, slice, [&](const auto& from, auto& to) {
      std::copy_n(from.begin() + begin, to.size(), to.begin());
    });
    return std::make_shared<Array>(std::move(slice));
  }

  // The order of operands and results is stated in scan.h.
  Arrays run_scan(const Node& node, const Arrays& operands, const std::vector<Type>& types) const {
    const ScanLayout layout = ScanLayout::of(node);
    const auto operand = [&](int i) { return operands[static_cast<size_t>(i)]; };
    Arrays carries(operands.begin(), operands.begin() + layout.carries);
    std::vector<Array> stacked;
    for (int k = 0; k < layout.stacked_out; ++k) {
      stacked.push_back(Array::zeros(types[static_cast<size_t>(layout.carries + k)]));
    }
    Arrays results(types.size());
    for (int64_t step = 0; step < layout.length; ++step) {
      const int64_t i = layout.reverse ? layout.length - 1 - step : step;
      Arrays inputs = carries;
      int next = layout.carries;
      for (int k = 0; k < layout.invariants; ++k) inputs.push_back(operand(next++));
      for (int k = 0; k < layout.stacked_in; ++k) inputs.push_back(slice_of(*operand(next++), i));
      for (int k = 0; k < layout.lists_in; ++k) {
        inputs.push_back(operand(layout.list_operand(k, i)));
      }
      const Arrays outputs = run(*node.bodies[0], inputs);
      auto output = outputs.begin();
      for (ArrayPtr& carry : carries) carry = *output++;
      for (Array& stack : stacked) {
        const Array& slice = **output++;
        with_elements(slice, stack, [&](const auto& from, auto& to) {
          std::copy(from.begin(), from.end(), to.begin() + i * slice.elements());
        });
      }
      for (int k = 0; k < layout.lists_out; ++k) {
        results[static_cast<size_t>(layout.list_result(k, i))] = *output++;
      }
    }
    std::copy(carries.begin(), carries.end(), results.begin());
    for (int k = 0; k < layout.stacked_out; ++k) {
      results[static_cast<size_t>(layout.carries + k)] =
          std::make_shared<Array>(std::move(stacked[static_cast<size_t>(k)]));
    }
    return results;
  }

  InterpreterOptions options_;
};

void expect_input(const Input& input, const Type& type, const Tensor& tensor,
                  InterpreterOptions options) {
  const bool widened = options.precision == InterpreterOptions::kF64 && is_float(type.dtype) &&
                       tensor.dtype() == DType::kF64;
  if (tensor.defined() && tensor.shape() == type.shape &&
      (tensor.dtype() == type.dtype || widened)) {
    return;
  }
  const std::string given =
      tensor.defined() ? to_string(Type{tensor.dtype(), tensor.shape()}) : "nothing";
  throw Error(
      fmt::format("input \"{}\" is {}, and {} was given", input.name, to_string(type), given));
}

}  // namespace
}  // namespace reference

std::vector<Tensor> interpret(const Graph& graph, std::span<const Tensor> inputs,
                              InterpreterOptions options) {
  if (inputs.size() != graph.inputs().size()) {
    throw Error(fmt::format("the graph has {} inputs, and {} were given", graph.inputs().size(),
                            inputs.size()));
  }
  reference::Arrays arrays;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = graph.inputs()[i];
    const Type& type = graph.type(input.value);
    reference::expect_input(input, type, inputs[i], options);
    arrays.push_back(
        std::make_shared<reference::Array>(reference::array_from(inputs[i], type.dtype)));
  }
  std::vector<Tensor> outputs;
  for (const reference::ArrayPtr& output : reference::Interpreter(options).run(graph, arrays)) {
    outputs.push_back(reference::tensor_from(*output, options));
  }
  return outputs;
}

}  // namespace graft
