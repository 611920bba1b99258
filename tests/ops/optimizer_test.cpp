#include "ops/optimizer.h"

#include <gmock/gmock.h>

#include <limits>

#include "ops/helpers.h"
#include "support/errors.h"

namespace graft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr AdamWOptions kOptions{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1};

Build step_of(const AdamWOptions& options) {
  return [options](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
    const AdamWResult result =
        adamw({in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], in[8]}, options);
    return {result.parameter, result.m, result.v};
  };
}

std::vector<Tensor> operands(const Shape& shape, DType dtype, bool finite) {
  Tensor flag = Tensor::zeros(DType::kBool, {});
  flag.data<bool>()[0] = finite;
  Tensor v = random_tensor(shape, 3);
  for (int64_t i = 0; i < v.elements(); ++i) v.data<double>()[i] = std::abs(v.data<double>()[i]);
  std::vector<Tensor> tensors{random_tensor(shape, 1), random_tensor(shape, 2), v,
                              random_tensor(shape, 4)};
  for (const double scalar : {0.5, 0.01, 0.36, 0.0975}) tensors.push_back(f64_scalar(scalar));
  for (Tensor& tensor : tensors) tensor = tensor.as(dtype);
  tensors.push_back(flag);
  return tensors;
}

TEST(AdamW, EqualsPlainLoops) {
  const std::vector<Tensor> in = operands({3, 4}, DType::kF64, true);
  std::vector<double> p = numbers(in[0]), m = numbers(in[1]), v = numbers(in[2]);
  const double clip = 0.5, rate = 0.01, c1 = 0.36, c2 = 0.0975;
  for (size_t i = 0; i < p.size(); ++i) {
    const double g = numbers(in[3])[i] * clip;
    m[i] = 0.8 * m[i] + 0.2 * g;
    v[i] = 0.95 * v[i] + 0.05 * g * g;
    p[i] = p[i] * (1 - rate * 0.1) - rate * (m[i] / c1) / (std::sqrt(v[i] / c2) + 1e-3);
  }
  const std::vector<Tensor> out = evaluate(in, step_of(kOptions));
  expect_close(out[0], p, 1e-14, "p");
  expect_close(out[1], m, 1e-14, "m");
  expect_close(out[2], v, 1e-14, "v");
}

TEST(AdamW, LeavesTheStateAsItWasWhereTheStepIsNotFinite) {
  std::vector<Tensor> in = operands({7}, DType::kF32, false);
  in[3].data<float>()[2] = std::numeric_limits<float>::quiet_NaN();
  in[4] = f32_scalar(std::numeric_limits<float>::infinity());
  in[0].data<float>()[3] = -0.0F;
  const std::vector<Tensor> out = evaluate(in, step_of(kOptions));
  for (size_t i = 0; i < 3; ++i) expect_same_bytes(out[i], in[i]);
}

TEST(AdamW, Errors) {
  std::vector<Tensor> in = operands({2, 3}, DType::kF32, true);
  in[3] = random_tensor({3, 2}, 4, 1, DType::kF32);
  EXPECT_THAT(
      error_of([&] { build_graph(in, step_of(kOptions)); }),
      AllOf(HasSubstr("adamw"), HasSubstr("gradient must be f32[2, 3]"), HasSubstr("f32[3, 2]")));
  in = operands({2}, DType::kF32, true);
  in[0] = in[0].as(DType::kBF16);
  EXPECT_THAT(error_of([&] { build_graph(in, step_of(kOptions)); }), HasSubstr("must be f32"));
}

TEST(SumSquares, OfAnyShapeAndType) {
  const Build build = [](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
    return {sum_squares(in[0])};
  };
  for (const Shape& shape : {Shape{}, Shape{5}, Shape{3, 4, 2}}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      const Tensor x = random_tensor(shape, 1, 3, dtype);
      double sum = 0;
      for (const double value : numbers(x)) sum += value * value;
      const Tensor result = evaluate({x}, build)[0];
      EXPECT_EQ(result.dtype(), dtype == DType::kF64 ? DType::kF64 : DType::kF32);
      expect_close(result, {sum}, 1e-6);
    }
  }
  const Tensor bad = Tensor::of<float>({2}, {1, std::numeric_limits<float>::quiet_NaN()});
  EXPECT_TRUE(std::isnan(numbers(evaluate({bad}, build)[0])[0]));
}

}  // namespace
}  // namespace graft::testing
