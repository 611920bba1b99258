#include "ops/activation.h"

#include <gmock/gmock.h>

#include <numbers>

#include "ops/helpers.h"
#include "support/errors.h"

namespace graft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kNames[] = {"silu", "gelu_tanh", "gelu"};

double act(double x, std::string_view name) {
  if (name == "silu") return x / (1 + std::exp(-x));
  if (name == "gelu") return x * 0.5 * std::erfc(-x / std::numbers::sqrt2);
  const double t = std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x));
  return 0.5 * x * (1 + t);
}

Build gated(const char* name) {
  return [name](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
    return {gated_activation(in[0], in[1], name)};
  };
}

std::vector<double> naive(const Tensor& gate, const Tensor& up, const char* name) {
  std::vector<double> y;
  const std::vector<double> g = numbers(gate), u = numbers(up);
  for (size_t i = 0; i < g.size(); ++i) y.push_back(act(g[i], name) * u[i]);
  return y;
}

TEST(GatedActivation, EqualsPlainLoops) {
  for (const char* name : kNames) {
    const Tensor gate = random_tensor({3, 40}, 1, 9), up = random_tensor({3, 40}, 2);
    expect_close(evaluate({gate, up}, gated(name))[0], naive(gate, up, name), 1e-14, name);
    const Tensor gate32 = gate.as(DType::kF32), up32 = up.as(DType::kF32);
    expect_close(evaluate({gate32, up32}, gated(name))[0], naive(gate32, up32, name), 2e-6, name);
  }
}

TEST(GatedActivation, IsComputedInF32AndRoundedOnce) {
  const Tensor gate = random_tensor({200}, 1, 4, DType::kBF16);
  const Tensor up = random_tensor({200}, 2, 2, DType::kBF16);
  for (const char* name : kNames) {
    const Tensor y = evaluate({gate, up}, gated(name))[0];
    EXPECT_EQ(y.dtype(), DType::kBF16);
    std::vector<double> expected = naive(gate, up, name);
    size_t equal = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      equal += numbers(y)[i] == round_to_dtype(expected[i], DType::kBF16) ? 1 : 0;
    }
    EXPECT_GE(equal, 198U) << name;  // but for what lies on the edge between two bf16 values
  }
}

TEST(GatedActivation, Gradients) {
  for (const char* name : kNames) {
    expect_gradients({random_tensor({2, 7}, 1, 5), random_tensor({2, 7}, 2)}, gated(name));
    expect_gradients({random_tensor({3}, 3, 2), random_tensor({3}, 4)}, gated(name), {0});
  }
}

TEST(GatedActivation, Errors) {
  EXPECT_THAT(error_of([] {
                build_graph({random_tensor({2, 3}, 1), random_tensor({3, 2}, 2)}, gated("silu"));
              }),
              AllOf(HasSubstr("gated_activation"), HasSubstr("f64[2, 3]"), HasSubstr("f64[3, 2]")));
  EXPECT_THAT(error_of([] {
                build_graph({random_tensor({2}, 1), random_tensor({2}, 2)}, gated("swish"));
              }),
              AllOf(HasSubstr("\"swish\""), HasSubstr("gelu_tanh")));
}

}  // namespace
}  // namespace graft::testing
