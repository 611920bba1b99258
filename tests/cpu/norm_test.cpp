#include "ops/norm.h"

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

struct Case {
  Shape shape;
  bool weighted;
  double offset;
};

const std::vector<Case> kCases{{{1, 7}, true, 0},      {{3, 16}, true, 1},
                               {{5, 3, 64}, false, 0}, {{2, 9, 4, 100}, true, 0},
                               {{600, 130}, true, 1},  {{2000, 32}, false, 0}};

Attributes attributes_of(const Case& c, bool round) {
  Attributes attributes{{"eps", 1e-5}, {"offset", c.offset}, {"round_before_weight", round}};
  if (!c.weighted) attributes.set("unweighted", true);
  return attributes;
}

TEST(NormKernel, ForwardAgreesWithItsDecomposition) {
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const double tolerance = dtype == DType::kF32 ? 1e-6 : 4e-3;
      std::vector<Tensor> inputs{random_tensor(c.shape, 1, 3, dtype)};
      if (c.weighted) inputs.push_back(random_tensor({c.shape.back()}, 2, 1, dtype));
      check_kernel(kRmsNorm, inputs, attributes_of(c, dtype == DType::kBF16),
                   {.tolerances = {tolerance, 1e-6}});
    }
  }
}

TEST(NormKernel, GradientAgreesWithItsDecomposition) {
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const bool weight_grad : {false, true}) {
        if (weight_grad && !c.weighted) continue;
        const Tensor x = random_tensor(c.shape, 1, 3, dtype);
        const Tensor w = random_tensor({c.shape.back()}, 2, 1, DType::kF32);
        std::vector<Tensor> forward{x};
        if (c.weighted) forward.push_back(w);
        const OneNode one(kRmsNorm, forward, attributes_of(c, false));
        const Tensor rstd = run_kernel(one, forward, 1)[1];
        std::vector<Tensor> inputs{random_tensor(c.shape, 3, 1, dtype), x};
        if (c.weighted) inputs.push_back(w);
        inputs.push_back(rstd);
        Attributes attributes = attributes_of(c, false);
        if (weight_grad) attributes.set("weight_grad", true);
        check_kernel(kRmsNormGrad, inputs, attributes,
                     {.tolerances = {dtype == DType::kF32 ? 1e-6 : 4e-3, 2e-6}});
      }
    }
  }
}

// Llama's order: what is multiplied by the weight is a bf16 already.
TEST(NormKernel, RoundsBeforeTheWeightWhenAsked) {
  const Tensor x = random_tensor({4, 64}, 1, 1, DType::kBF16);
  const Tensor w = random_tensor({64}, 2, 1, DType::kBF16);
  const Attributes attributes{{"eps", 1e-6}, {"offset", 0.0}, {"round_before_weight", true}};
  const OneNode one(kRmsNorm, {x, w}, attributes);
  const std::vector<Tensor> results = run_kernel(one, {x, w}, 1);
  const std::vector<double> y = numbers(results[0]), xs = numbers(x), ws = numbers(w);
  for (size_t i = 0; i < y.size(); ++i) {
    const auto rstd = static_cast<double>(results[1].data<float>()[i / 64]);
    const double normalised = round_to_dtype(static_cast<float>(xs[i] * rstd), DType::kBF16);
    EXPECT_EQ(y[i], round_to_dtype(normalised * ws[i % 64], DType::kBF16)) << i;
  }
}

TEST(NormKernel, ANaNStaysInItsRow) {
  std::vector<Tensor> inputs;
  inputs.push_back(random_tensor({3, 40}, 1));
  inputs[0].data<float>()[45] = std::nanf("");
  const OneNode one(kRmsNorm, inputs, {{"eps", 1e-6}, {"offset", 0.0}, {"unweighted", true}});
  const Tensor y = run_kernel(one, inputs, 1)[0];
  for (int64_t i = 0; i < 120; ++i) EXPECT_EQ(std::isnan(y.data<float>()[i]), i / 40 == 1);
}

}  // namespace
}  // namespace graft::cpu::testing
