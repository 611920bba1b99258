#include "ops/linear.h"

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

struct Case {
  int64_t rows, in, out, rank;
};

Attributes linear_attributes(bool bias, bool lora, bool lora_input) {
  Attributes attributes;
  if (bias) attributes.set("has_bias", true);
  if (lora) attributes.set("has_lora", true);
  if (lora_input) attributes.set("has_lora_input", true);
  return attributes;
}

void check_linear(const Case& c, DType x, DType w, bool bias, bool lora_input, double tolerance) {
  std::vector<Tensor> inputs{random_tensor({c.rows, c.in}, 1, 1, x),
                             random_tensor({c.out, c.in}, 2, 0.1, w)};
  if (bias) inputs.push_back(random_tensor({c.out}, 3, 1, w));
  if (c.rank > 0) {
    inputs.push_back(random_tensor({c.rank, c.in}, 4, 0.3));
    inputs.push_back(random_tensor({c.out, c.rank}, 5, 0.3));
    inputs.push_back(f32(1.7F));
  }
  if (lora_input) inputs.push_back(random_tensor({c.rows, c.in}, 6, 1, x));
  check_kernel(kLinear, inputs, linear_attributes(bias, c.rank > 0, lora_input),
               {.tolerances = {tolerance, 1e-6}});
}

void check_input_grad(const Case& c, DType x, DType w, bool separate, double tolerance) {
  std::vector<Tensor> inputs{random_tensor({c.rows, c.out}, 1, 1, x),
                             random_tensor({c.out, c.in}, 2, 0.1, w)};
  Attributes attributes;
  if (c.rank > 0) {
    attributes.set("has_lora", true);
    inputs.push_back(random_tensor({c.rank, c.in}, 4, 0.3));
    inputs.push_back(random_tensor({c.out, c.rank}, 5, 0.3));
    inputs.push_back(f32(0.6F));
  }
  if (separate) attributes.set("separate_lora", true);
  check_kernel(kLinearInputGrad, inputs, attributes, {.tolerances = {tolerance, 1e-6, tolerance}});
}

constexpr double kF32Error = 1e-6;
constexpr double kBF16Error = 3e-3;  // one rounding: 2^-9 at most, less in the mean

const std::vector<Case> kCases{{1, 5, 3, 2},     {7, 33, 49, 1},    {32, 64, 48, 16},
                               {33, 64, 48, 16}, {257, 96, 200, 8}, {300, 130, 97, 16},
                               {64, 7, 500, 3},  {513, 48, 17, 4}};

TEST(LinearKernel, PlainInF32) {
  for (const Case& c : kCases) {
    for (const bool bias : {false, true}) {
      check_linear({c.rows, c.in, c.out, 0}, DType::kF32, DType::kF32, bias, false, kF32Error);
    }
    check_input_grad({c.rows, c.in, c.out, 0}, DType::kF32, DType::kF32, false, kF32Error);
  }
}

TEST(LinearKernel, LoraInF32) {
  for (const Case& c : kCases) {
    for (const bool other_input : {false, true}) {
      check_linear(c, DType::kF32, DType::kF32, other_input, other_input, kF32Error);
      check_input_grad(c, DType::kF32, DType::kF32, other_input, kF32Error);
    }
  }
}

TEST(LinearKernel, BF16WeightBesideF32Activations) {
  for (const Case& c : kCases) {
    check_linear(c, DType::kF32, DType::kBF16, true, false, kF32Error);
    check_input_grad(c, DType::kF32, DType::kBF16, false, kF32Error);
  }
}

TEST(LinearKernel, InBF16) {
  for (const Case& c : kCases) {
    check_linear(c, DType::kBF16, DType::kBF16, true, true, kBF16Error);
    check_input_grad(c, DType::kBF16, DType::kBF16, true, kBF16Error);
    check_linear(c, DType::kBF16, DType::kF32, true, false, kBF16Error);
    check_input_grad(c, DType::kBF16, DType::kF32, false, kBF16Error);
  }
}

// The low-rank term joins in f32: a term far below the base product's rounding still moves the sum.
TEST(LinearKernel, SmallLoraTermSurvivesBF16) {
  const int64_t rows = 64, in = 64, out = 64;
  std::vector<Tensor> inputs{
      random_tensor({rows, in}, 1, 1, DType::kBF16), random_tensor({out, in}, 2, 1, DType::kBF16),
      random_tensor({4, in}, 3, 1), random_tensor({out, 4}, 4, 1e-3), f32(1)};
  const auto run = [&] {
    const OneNode one(kLinear, inputs, {{"has_lora", true}});
    return numbers(run_kernel(one, inputs, 2)[0]);
  };
  const std::vector<double> with = run();
  inputs[4] = f32(0);
  const std::vector<double> without = run();
  double expected = 0, sum = 0;
  const OneNode one(kLinear, inputs, {{"has_lora", true}});
  inputs[4] = f32(1);
  const Tensor exact = interpret(one.graph, inputs, {.precision = InterpreterOptions::kF64})[0];
  inputs[4] = f32(0);
  const Tensor base = interpret(one.graph, inputs, {.precision = InterpreterOptions::kF64})[0];
  for (size_t i = 0; i < with.size(); ++i) {
    const double term = exact.data<double>()[i] - base.data<double>()[i];
    sum += (with[i] - without[i]) * term;
    expected += term * term;
  }
  // Rounding is unbiased: along its own direction the term arrives whole.
  EXPECT_NEAR(sum / expected, 1, 0.15);
}

TEST(LinearKernel, TheSameBitsOnAnyTeamAtRealShapes) {
  for (const Case& c : {Case{1024, 576, 16, 0}, Case{1024, 576, 576, 16}, Case{1024, 1536, 576, 16},
                        Case{512, 576, 1536, 16}, Case{1000, 576, 192, 16}}) {
    const std::vector<Tensor> inputs{
        random_tensor({c.rows, c.in}, 1), random_tensor({c.out, c.in}, 2, 0.1),
        random_tensor({16, c.in}, 4, 0.3), random_tensor({c.out, 16}, 5, 0.3), f32(2)};
    const OneNode one(kLinear, inputs, {{"has_lora", true}});
    std::vector<Tensor> gradient_inputs = inputs;
    gradient_inputs[0] = random_tensor({c.rows, c.out}, 6);
    const OneNode gradient(kLinearInputGrad, gradient_inputs, {{"has_lora", true}});
    const std::vector<Tensor> y = run_kernel(one, inputs, 1);
    const std::vector<Tensor> dx = run_kernel(gradient, gradient_inputs, 1);
    for (const int threads : {2, 5}) {
      const std::vector<Tensor> other = run_kernel(one, inputs, threads);
      const std::vector<Tensor> other_dx = run_kernel(gradient, gradient_inputs, threads);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(std::memcmp(y[i].bytes(), other[i].bytes(), y[i].size_bytes()), 0);
        EXPECT_EQ(std::memcmp(dx[i].bytes(), other_dx[i].bytes(), dx[i].size_bytes()), 0);
      }
    }
  }
}

}  // namespace
}  // namespace graft::cpu::testing
