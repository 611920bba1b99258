#include "ops/loss.h"

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

struct Case {
  int64_t rows, width, vocabulary;
};

std::vector<Tensor> operands(const Case& c, DType h, DType w, double scale, bool ignore_some) {
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < c.rows; ++i) {
    targets.push_back(static_cast<int32_t>((i * 7919 + 5) % c.vocabulary));
    if (ignore_some && (i % 5 == 2 || i > c.rows * 3 / 4)) targets.back() = -1;
  }
  return {random_tensor({c.rows, c.width}, 1, scale, h),
          random_tensor({c.vocabulary, c.width}, 2, scale, w), s32({c.rows}, targets),
          random_tensor({c.rows}, 3)};
}

Attributes attributes_of(double softcap, bool weight_grad) {
  Attributes attributes{{"softcap", softcap}};
  if (weight_grad) attributes.set("weight_grad", true);
  return attributes;
}

const std::vector<Case> kCases{{1, 3, 2},      {5, 16, 11},    {17, 33, 300}, {130, 20, 517},
                               {300, 24, 700}, {700, 8, 2100}, {64, 64, 4097}};

TEST(LossKernel, ForwardAgreesWithItsDecomposition) {
  for (const Case& c : kCases) {
    for (const double softcap : {0.0, 2.0}) {
      check_kernel(kCrossEntropy, operands(c, DType::kF32, DType::kF32, 1, true),
                   attributes_of(softcap, false), {.tolerance = 2e-6});
    }
  }
}

TEST(LossKernel, GradientAgreesWithItsDecomposition) {
  for (const Case& c : kCases) {
    for (const double softcap : {0.0, 2.0}) {
      for (const bool weight_grad : {false, true}) {
        check_kernel(kCrossEntropyWithGrad, operands(c, DType::kF32, DType::kF32, 1, true),
                     attributes_of(softcap, weight_grad), {.tolerance = 2e-6});
      }
    }
  }
}

TEST(LossKernel, InBF16) {
  for (const Case& c : {Case{17, 33, 300}, Case{300, 24, 700}}) {
    for (const DType w : {DType::kF32, DType::kBF16}) {
      check_kernel(kCrossEntropyWithGrad, operands(c, DType::kBF16, w, 1, true),
                   attributes_of(0, true), {.tolerances = {2e-6, 2e-6, 5e-3, 5e-3}});
    }
    check_kernel(kCrossEntropyWithGrad, operands(c, DType::kF32, DType::kBF16, 1, false),
                 attributes_of(1.5, true), {.tolerance = 2e-6});
  }
}

// Logits of hundreds: sums must be shifted by their maxima, within and between groups.
TEST(LossKernel, LargeLogits) {
  check_kernel(kCrossEntropyWithGrad, operands({40, 32, 3000}, DType::kF32, DType::kF32, 12, true),
               attributes_of(0, true), {.tolerances = {1e-6, 1e-6, 1e-5, 1e-5}});
}

// A token that is predicted all but surely: loss and gradient are tiny and keep their digits.
TEST(LossKernel, SurePredictionsKeepTheirDigits) {
  std::vector<Tensor> inputs = operands({20, 16, 600}, DType::kF32, DType::kF32, 0.5, false);
  for (int64_t i = 0; i < 20; ++i) {
    const int32_t target = inputs[2].data<int32_t>()[i];
    for (int64_t j = 0; j < 16; ++j) {
      inputs[0].data<float>()[i * 16 + j] = 18 * inputs[1].data<float>()[target * 16 + j];
    }
  }
  check_kernel(kCrossEntropyWithGrad, inputs, attributes_of(0, true), {.tolerance = 1e-5});
}

TEST(LossKernel, NothingToTrain) {
  std::vector<Tensor> inputs = operands({40, 8, 50}, DType::kF32, DType::kF32, 1, false);
  std::fill_n(inputs[2].data<int32_t>(), 40, -1);
  const std::vector<Tensor> results =
      check_kernel(kCrossEntropyWithGrad, inputs, attributes_of(0, true), {.tolerance = 0});
  EXPECT_EQ(results[0].data<float>()[0], 0);
}

TEST(LossKernel, ANaNReachesTheLoss) {
  for (const int operand : {0, 1}) {
    std::vector<Tensor> inputs = operands({300, 8, 900}, DType::kF32, DType::kF32, 1, false);
    inputs[static_cast<size_t>(operand)].data<float>()[8 * 131] = std::nanf("");
    const OneNode one(kCrossEntropyWithGrad, inputs, attributes_of(0, false));
    EXPECT_TRUE(std::isnan(run_kernel(one, inputs, 2)[0].data<float>()[0]));
  }
}

}  // namespace
}  // namespace graft::cpu::testing
