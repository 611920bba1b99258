#include "ops/activation.h"

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

TEST(ActivationKernel, AgreesWithItsDecomposition) {
  for (const char* name : {"silu", "gelu_tanh", "gelu"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const double tolerance = dtype == DType::kF32 ? 1e-6 : 3e-3;
      for (const Shape& shape : {Shape{1}, Shape{17}, Shape{3, 5, 100}, Shape{70, 1536}}) {
        const Tensor gate = random_tensor(shape, 1, 6, dtype),
                     up = random_tensor(shape, 2, 1, dtype);
        const Attributes attributes{{"activation", name}};
        // The series for erf costs the interpreter much.
        if (std::string(name) == "gelu" && gate.elements() > 2000) continue;
        check_kernel(kGatedActivation, {gate, up}, attributes,
                     {.tolerance = tolerance, .floor = 0.1});
        check_kernel(kGatedActivationGrad, {random_tensor(shape, 3, 1, dtype), gate, up},
                     attributes, {.tolerance = tolerance, .floor = 0.1});
      }
    }
  }
}

// Element by element against double: in the tails, around 0, and where exp saturates.
TEST(ActivationKernel, IsAccurateEverywhere) {
  std::vector<float> points;
  for (const float x : {0.0F, 1e-8F, 1e-4F, 0.02F, 0.3F, 0.34F, 0.36F, 1.0F, 3.0F, 9.0F, 20.0F,
                        87.0F, 89.0F, 200.0F, 1e6F}) {
    points.push_back(x);
    points.push_back(-x);
  }
  const auto n = static_cast<int64_t>(points.size());
  const Tensor gate = Tensor::of<float>({n}, points);
  const Tensor up = Tensor::of<float>({n}, std::vector<float>(points.size(), 1.0F));
  const auto value = [](const std::string& name, double x) {
    if (name == "silu") return x / (1 + std::exp(-x));
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * x * (1 + 0.044715 * x * x)));
  };
  for (const char* name : {"silu", "gelu_tanh"}) {
    const OneNode one(kGatedActivation, {gate, up}, {{"activation", name}});
    const Tensor y = run_kernel(one, {gate, up}, 1)[0];
    for (size_t i = 0; i < points.size(); ++i) {
      const double expected = value(name, static_cast<double>(points[i]));
      EXPECT_NEAR(y.data<float>()[i], expected, 5e-7 * std::max(std::abs(expected), 1e-1))
          << name << "(" << points[i] << ")";
    }
  }
}

TEST(ActivationKernel, ANaNStaysOne) {
  for (const char* name : {"silu", "gelu_tanh", "gelu"}) {
    Tensor gate = random_tensor({33}, 1);
    gate.data<float>()[3] = gate.data<float>()[32] = std::nanf("");
    const Tensor up = random_tensor({33}, 2);
    const OneNode one(kGatedActivation, {gate, up}, {{"activation", name}});
    const Tensor y = run_kernel(one, {gate, up}, 1)[0];
    for (int i = 0; i < 33; ++i)
      EXPECT_EQ(std::isnan(y.data<float>()[i]), i == 3 || i == 32) << name;
  }
}

}  // namespace
}  // namespace graft::cpu::testing
