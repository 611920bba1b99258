#include "ops/norm.h"

#include <gmock/gmock.h>

#include "ops/helpers.h"
#include "support/errors.h"

namespace graft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Build norm_of(const RmsNormOptions& options) {
  return [options](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
    return {rms_norm(in[0], in.size() > 1 ? in[1] : Value(), options)};
  };
}

std::vector<double> naive(const Tensor& x, const double* w, double eps, double offset) {
  const int64_t width = x.shape().back(), rows = x.elements() / width;
  const double* data = x.data<double>();
  std::vector<double> y;
  for (int64_t n = 0; n < rows; ++n) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += data[n * width + i] * data[n * width + i];
    const double rms = std::sqrt(squares / static_cast<double>(width) + eps);
    for (int64_t i = 0; i < width; ++i) {
      y.push_back(data[n * width + i] / rms * (w != nullptr ? w[i] + offset : 1));
    }
  }
  return y;
}

TEST(RmsNorm, EqualsPlainLoops) {
  const Tensor w = random_tensor({5}, 2);
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 3, 4, 5}, Shape{5}}) {
    const Tensor x = random_tensor(shape, 1, 3);
    for (const double offset : {0.0, 1.0}) {
      const RmsNormOptions options{.eps = 1e-2, .offset = offset};
      expect_close(evaluate({x, w}, norm_of(options))[0], naive(x, w.data<double>(), 1e-2, offset),
                   1e-13);
    }
    expect_close(evaluate({x}, norm_of({.eps = 1e-2}))[0], naive(x, nullptr, 1e-2, 0), 1e-13);
  }
}

TEST(RmsNorm, Gradients) {
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 2, 4}, Shape{6}}) {
    const Tensor x = random_tensor(shape, 1, 2), w = random_tensor({shape.back()}, 2);
    for (const double offset : {0.0, 1.0}) {
      expect_gradients({x, w}, norm_of({.eps = 1e-3, .offset = offset}));
    }
    expect_gradients({x, w}, norm_of({.eps = 1e-3}), {0});
    expect_gradients({x}, norm_of({.eps = 1e-3}));
  }
}

TEST(RmsNorm, ComputesTheWeightsGradientOnlyIfAsked) {
  const auto graph = [](std::vector<size_t> wrt) {
    return build_graph(
        {random_tensor({3, 4}, 1), random_tensor({4}, 2)},
        [&](Graph&, const std::vector<Value>& in) {
          std::vector<Value> variables;
          for (const size_t i : wrt) variables.push_back(in[i]);
          return gradients(reduce_sum(rms_norm(in[0], in[1], {}), {0, 1}), variables);
        });
  };
  const auto asked = [](const Graph& g) {
    for (const Node& node : g.nodes()) {
      if (node.op == &kRmsNormGrad) return node.attributes.flag("weight_grad");
    }
    ADD_FAILURE() << "no rms_norm_grad";
    return false;
  };
  EXPECT_FALSE(asked(*graph({0})));
  EXPECT_TRUE(asked(*graph({0, 1})));
}

// x = (1, 1, 1, 1.015625) has the root mean square 1.00393: the normalised values, their rounding
// to bf16, and the product with w = 1.5 then rounded differ from the product rounded once.
TEST(RmsNorm, RoundsWhereTheModelFamilyRounds) {
  const std::vector<float> values{1.0F, 1.0F, 1.0F, 1.015625F};
  const std::vector<float> weights{1.5078125F, 1.25F, 1.7578125F, 1.2578125F};
  const Tensor x = Tensor::of<float>({1, 4}, values).as(DType::kBF16);
  const Tensor w = Tensor::of<float>({4}, weights).as(DType::kBF16);
  double squares = 0;
  for (const float v : values) squares += double{v} * v;
  const double rms = std::sqrt(squares / 4);
  const auto bf16 = [](double v) { return round_to_dtype(v, DType::kBF16); };
  std::vector<double> before, once;
  for (size_t i = 0; i < 4; ++i) {
    before.push_back(bf16(bf16(values[i] / rms) * weights[i]));
    once.push_back(bf16(values[i] / rms * weights[i]));
  }
  ASSERT_NE(before, once);
  const RmsNormOptions llama{.eps = 0, .round_before_weight = true};
  const RmsNormOptions gemma{.eps = 0, .round_before_weight = false};
  EXPECT_EQ(numbers(evaluate({x, w}, norm_of(llama))[0]), before);
  EXPECT_EQ(numbers(evaluate({x, w}, norm_of(gemma))[0]), once);
}

TEST(RmsNorm, ErrorsNameTheOperationAndBothShapes) {
  EXPECT_THAT(error_of([] {
                build_graph({random_tensor({2, 3}, 1), random_tensor({4}, 2)}, norm_of({}));
              }),
              AllOf(HasSubstr("rms_norm"), HasSubstr("f64[2, 3]"), HasSubstr("f64[4]")));
}

}  // namespace
}  // namespace graft::testing
