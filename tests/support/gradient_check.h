#pragma once
// Gradients against finite differences, for primitives and composites alike.
//
// A function builds outputs from inputs. check_gradients gives every float output a random
// cotangent, differentiates sum(cotangent * output) with vector_jacobian_product, and compares with
// central differences of the forward graph, both in double through the interpreter (composites
// through their decompositions, so a composite's gradient is checked against its own forward
// decomposition). It also asks for the gradient of each input alone, which must be what all
// together gave: rules compute what `needs` says and no less.
//
//   check_gradients({{.type = {DType::kF32, {2, 3}}}, {.type = {DType::kF32, {3}}}},
//                   [](Graph& g, const std::vector<Value>& in) -> std::vector<Value> {
//                     return {rms_norm(in[0], in[1], {})};
//                   });
//
// Float inputs are drawn uniformly from [low, high) unless a value is given (as f64 or in the
// input's type); other inputs need a value. Inputs with differentiate = false are held fixed. An
// output that is not differentiable is simply not returned by the function.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "ir/autodiff.h"
#include "ir/graph.h"
#include "ir/interpreter.h"
#include "ir/passes.h"

namespace graft::testing {

struct CheckedInput {
  Type type;
  Tensor value = {};
  double low = -1, high = 1;
  bool differentiate = true;
};

struct GradientCheckOptions {
  double tolerance = 1e-6;  // of |difference|, relative to the largest gradient entry of the input
  double step = 1e-5;       // of the central difference
  int64_t max_elements = 48;  // checked singly in each input; random directions cover the rest
  uint64_t seed = 1;
  AutodiffOptions autodiff = {};
};

using BuildFunction = std::function<std::vector<Value>(Graph&, const std::vector<Value>&)>;

namespace internal {

inline Tensor random_tensor(const Shape& shape, double low, double high, Philox& random) {
  Tensor t = Tensor::empty(DType::kF64, shape);
  for (int64_t i = 0; i < t.elements(); ++i)
    t.data<double>()[i] = low + (high - low) * random.uniform();
  return t;
}

inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.elements(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

// The forward graph, its inputs' values and the cotangents of its outputs.
struct Checked {
  Graph forward;
  std::vector<Value> inputs, outputs;
  std::vector<Tensor> values, cotangents;

  // sum over outputs of <cotangent, output>.
  double objective() const {
    const std::vector<Tensor> out =
        interpret(forward, values, {.precision = InterpreterOptions::kF64});
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += dot(out[i], cotangents[i]);
    return sum;
  }

  // The central difference along `direction` in input i.
  double difference(size_t i, const Tensor& direction, double step) {
    const Tensor original = values[i];
    const auto at = [&](double sign) {
      values[i] = original.clone();
      for (int64_t e = 0; e < original.elements(); ++e) {
        values[i].data<double>()[e] += sign * step * direction.data<double>()[e];
      }
      return objective();
    };
    const double above = at(1), below = at(-1);
    values[i] = original;
    return (above - below) / (2 * step);
  }
};

// The gradients of the objective with respect to these inputs, through autodiff.
inline std::vector<Tensor> reverse_mode(const Checked& checked, const BuildFunction& build,
                                        const std::vector<size_t>& wrt,
                                        const AutodiffOptions& options) {
  Graph graph;
  std::vector<Value> inputs, wanted, cotangents;
  std::vector<Tensor> values = checked.values;
  for (size_t i = 0; i < checked.inputs.size(); ++i) {
    inputs.push_back(graph.input("in" + std::to_string(i), checked.inputs[i].type()));
  }
  const std::vector<Value> outputs = build(graph, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    cotangents.push_back(graph.input("d_out" + std::to_string(i), outputs[i].type()));
    values.push_back(checked.cotangents[i]);
  }
  for (size_t i : wrt) wanted.push_back(inputs[i]);
  for (Value g : vector_jacobian_product(outputs, cotangents, wanted, options)) {
    graph.output("gradient", g);
  }
  verify(graph);
  const std::unique_ptr<Graph> primitive = decompose(graph);
  verify(*primitive);
  return interpret(*primitive, values, {.precision = InterpreterOptions::kF64});
}

inline void compare_with_differences(Checked& checked, size_t i, const Tensor& gradient,
                                     const GradientCheckOptions& options, Philox& random) {
  double scale = 1e-3;  // below this, absolute
  for (double g : gradient.span<double>()) scale = std::max(scale, std::abs(g));
  const auto compare = [&](const Tensor& direction, double along, const std::string& where) {
    const double expected = checked.difference(i, direction, options.step);
    EXPECT_NEAR(along, expected, options.tolerance * scale)
        << "gradient of input " << i << " " << to_string(checked.inputs[i].type()) << " " << where;
  };
  const int64_t count = gradient.elements();
  const int64_t stride =
      (count + options.max_elements - 1) / std::max<int64_t>(options.max_elements, 1);
  for (int64_t e = 0; e < count; e += std::max<int64_t>(stride, 1)) {
    Tensor direction = Tensor::zeros(DType::kF64, gradient.shape());
    direction.data<double>()[e] = 1;
    compare(direction, gradient.span<double>()[static_cast<size_t>(e)],
            "at element " + std::to_string(e));
  }
  if (stride <= 1) return;
  for (int repeat = 0; repeat < 3; ++repeat) {
    Tensor direction = random_tensor(gradient.shape(), -1, 1, random);
    const double length = std::sqrt(dot(direction, direction));
    for (int64_t e = 0; e < count; ++e) direction.data<double>()[e] /= length;
    compare(direction, dot(gradient, direction), "along a random direction");
  }
}

}  // namespace internal

inline void check_gradients(const std::vector<CheckedInput>& inputs, const BuildFunction& build,
                            const GradientCheckOptions& options = {}) {
  Philox random(options.seed, fnv1a_32("gradient check"));
  internal::Checked checked;
  std::vector<size_t> wrt;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const CheckedInput& input = inputs[i];
    checked.inputs.push_back(checked.forward.input("in" + std::to_string(i), input.type));
    const bool real = is_float(input.type.dtype);
    ASSERT_TRUE(real || input.value.defined()) << "input " << i << " needs a value";
    if (real && input.differentiate) wrt.push_back(i);
    if (!input.value.defined()) {
      checked.values.push_back(
          internal::random_tensor(input.type.shape, input.low, input.high, random));
    } else {
      checked.values.push_back(real ? input.value.as(DType::kF64) : input.value);
    }
  }
  checked.outputs = build(checked.forward, checked.inputs);
  for (size_t i = 0; i < checked.outputs.size(); ++i) {
    const Type type = checked.outputs[i].type();
    ASSERT_TRUE(is_float(type.dtype)) << "output " << i << " is " << to_string(type);
    checked.forward.output("out" + std::to_string(i), checked.outputs[i]);
    checked.cotangents.push_back(internal::random_tensor(type.shape, -1, 1, random));
  }
  verify(checked.forward);

  const std::vector<Tensor> gradients =
      internal::reverse_mode(checked, build, wrt, options.autodiff);
  for (size_t k = 0; k < wrt.size(); ++k) {
    internal::compare_with_differences(checked, wrt[k], gradients[k], options, random);
    const Tensor alone = internal::reverse_mode(checked, build, {wrt[k]}, options.autodiff)[0];
    for (int64_t e = 0; e < alone.elements(); ++e) {
      const double expected = gradients[k].data<double>()[e];
      ASSERT_NEAR(alone.data<double>()[e], expected, 1e-12 * (1 + std::abs(expected)))
          << "gradient of input " << wrt[k] << " alone, element " << e;
    }
  }
}

}  // namespace graft::testing
