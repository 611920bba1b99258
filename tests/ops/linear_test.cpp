#include "ops/linear.h"

#include <gmock/gmock.h>

#include "ops/helpers.h"
#include "support/errors.h"

namespace graft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Form {
  bool bias = false, lora = false, separate = false;
};
constexpr Form kForms[] = {{}, {true}, {false, true}, {true, true}, {true, true, true}};

// x, W, then bias, A, B, scale, x_lora as the form has them.
std::vector<Tensor> operands_of(const Form& form, const Shape& x, int64_t out, int64_t rank) {
  std::vector<Tensor> tensors{random_tensor(x, 1), random_tensor({out, x.back()}, 2)};
  if (form.bias) tensors.push_back(random_tensor({out}, 3));
  if (form.lora) {
    tensors.push_back(random_tensor({rank, x.back()}, 4));
    tensors.push_back(random_tensor({out, rank}, 5));
    tensors.push_back(f64_scalar(0.75));
  }
  if (form.separate) tensors.push_back(random_tensor(x, 6));
  return tensors;
}

Build build_of(const Form& form) {
  return [form](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
    size_t next = 2;
    const Value bias = form.bias ? in[next++] : Value();
    if (!form.lora) return {linear(in[0], in[1], bias)};
    LoraOperands lora{in[next], in[next + 1], in[next + 2], {}};
    if (form.separate) lora.input = in[next + 3];
    return {linear(in[0], in[1], bias, &lora)};
  };
}

std::vector<double> naive(const Form& form, const std::vector<Tensor>& in) {
  const int64_t width = in[1].shape()[1], out = in[1].shape()[0];
  const int64_t rows = in[0].elements() / width;
  std::vector<double> y(static_cast<size_t>(rows * out));
  size_t next = 2;
  const double* bias = form.bias ? in[next++].data<double>() : nullptr;
  const double* x = in[0].data<double>();
  const double* w = in[1].data<double>();
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias != nullptr ? bias[o] : 0;
      for (int64_t i = 0; i < width; ++i) sum += x[n * width + i] * w[o * width + i];
      if (form.lora) {
        const int64_t rank = in[next].shape()[0];
        const double* branch = form.separate ? in[next + 3].data<double>() : x;
        for (int64_t r = 0; r < rank; ++r) {
          double u = 0;
          for (int64_t i = 0; i < width; ++i) {
            u += branch[n * width + i] * in[next].data<double>()[r * width + i];
          }
          sum += in[next + 2].data<double>()[0] * u * in[next + 1].data<double>()[o * rank + r];
        }
      }
      y[static_cast<size_t>(n * out + o)] = sum;
    }
  }
  return y;
}

TEST(Linear, EqualsPlainLoops) {
  for (const Form& form : kForms) {
    for (const Shape& x : {Shape{2, 3, 5}, Shape{4, 7}, Shape{6}}) {
      const std::vector<Tensor> in = operands_of(form, x, 4, 2);
      expect_close(evaluate(in, build_of(form))[0], naive(form, in), 1e-13);
    }
  }
}

TEST(Linear, GradientsOfEveryOperand) {
  for (const Form& form : kForms) {
    for (const Shape& x : {Shape{2, 3, 5}, Shape{4, 3}}) {
      expect_gradients(operands_of(form, x, 4, 2), build_of(form));
    }
  }
}

TEST(Linear, GradientsOfSomeOperands) {
  const Form separate{true, true, true}, shared{false, true};
  for (const std::vector<size_t>& wrt : std::vector<std::vector<size_t>>{{0, 3, 4}, {3, 4, 6}}) {
    expect_gradients(operands_of(separate, {2, 3, 5}, 4, 2), build_of(separate), wrt);
  }
  expect_gradients(operands_of(shared, {2, 3, 5}, 4, 2), build_of(shared), {2, 3});
}

// y = bf16(sum of both terms): rounding the base product first would lose the low-rank term.
TEST(Linear, AddsTheLowRankTermBeforeTheOneRounding) {
  const Tensor x = Tensor::of<float>({1, 1}, {1}).as(DType::kBF16);
  const Tensor w = Tensor::of<float>({1, 1}, {256}).as(DType::kBF16);
  // 256 + 0.75 + 0.75 rounds to 258; 256 + 0.75 alone, rounded first, stays 256.
  const std::vector<Tensor> in{x,
                               w,
                               Tensor::of<float>({1}, {0.75F}),
                               Tensor::of<float>({1, 1}, {1}),
                               Tensor::of<float>({1, 1}, {1}),
                               f32_scalar(0.75F)};
  const Tensor y = evaluate(in, build_of({true, true}))[0];
  EXPECT_EQ(y.dtype(), DType::kBF16);
  EXPECT_EQ(numbers(y)[0], 258);
}

struct Counts {
  int input_grads, products;
};

Counts backward_of(const Form& form, const std::vector<size_t>& wrt) {
  const std::vector<Tensor> in = operands_of(form, {2, 3, 5}, 4, 2);
  const auto graph = build_graph(in, [&](Graph& g, const std::vector<Value>& values) {
    const Value y = build_of(form)(g, values)[0];
    std::vector<Value> trained;
    for (const size_t i : wrt) trained.push_back(values[i]);
    return gradients(reduce_sum(y, {0, 1, 2}), trained);
  });
  const auto clean = eliminate_dead_code(*graph);
  return {count_ops(*clean, kLinearInputGrad), count_ops(*clean, kDotGeneral)};
}

TEST(Linear, ComputesNoGradientThatIsNotAskedFor) {
  const auto expect = [](const Form& form, const std::vector<size_t>& wrt, int grads, int dots) {
    const Counts counts = backward_of(form, wrt);
    EXPECT_EQ(counts.input_grads, grads) << ::testing::PrintToString(wrt);
    EXPECT_EQ(counts.products, dots) << ::testing::PrintToString(wrt);
  };
  expect({}, {0}, 1, 0);                      // frozen weight: no dW
  expect({}, {1}, 0, 1);                      // first layer: no dx
  expect({false, true}, {2, 3}, 0, 3);        // A, B alone: v, dA, dB
  expect({false, true}, {3}, 0, 1);           // B alone: dB
  expect({false, true}, {0, 2, 3}, 1, 2);     // v comes from the input's gradient
  expect({false, true}, {0, 1, 2, 3}, 1, 3);  // full fine-tuning of an adapted layer
  expect({false, true, true}, {0, 5}, 1, 0);  // dropout before A
  expect({true, false}, {2}, 0, 0);           // a bias alone is a sum
}

TEST(Linear, ErrorsNameTheOperationAndBothShapes) {
  const auto error = [](const std::vector<Tensor>& in, const Form& form) {
    return error_of([&] { build_graph(in, build_of(form)); });
  };
  EXPECT_THAT(error({random_tensor({2, 3}, 1), random_tensor({4, 5}, 2)}, {}),
              AllOf(HasSubstr("linear"), HasSubstr("f64[2, 3]"), HasSubstr("f64[4, 5]")));
  EXPECT_THAT(
      error({random_tensor({2, 5}, 1), random_tensor({4, 5}, 2), random_tensor({5}, 3)}, {true}),
      AllOf(HasSubstr("bias must be f64[4]"), HasSubstr("f64[5]")));
  std::vector<Tensor> lora = operands_of({false, true}, {2, 5}, 4, 2);
  lora[3] = random_tensor({4, 3}, 9);
  EXPECT_THAT(error(lora, {false, true}),
              AllOf(HasSubstr("B must be f64[4, 2]"), HasSubstr("f64[4, 3]")));
}

TEST(Linear, RefusesAGradientThroughTheLowRankProduct) {
  const std::vector<Tensor> in = operands_of({false, true}, {2, 5}, 4, 2);
  EXPECT_THAT(error_of([&] {
                build_graph(in, [](Graph& g, const std::vector<Value>& v) {
                  const std::vector<Value> results = g.add(kLinear, v, {{"has_lora", true}});
                  return gradients(reduce_sum(results[1], {0, 1}), std::vector{v[0]});
                });
              }),
              HasSubstr("linear"));
}

}  // namespace
}  // namespace graft::testing
