#include "ops/rope.h"

#include <gmock/gmock.h>

#include "ops/helpers.h"
#include "support/errors.h"

namespace graft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kFactor = 1.25;

struct Case {
  int64_t head_dim, rotated;
  bool interleaved;
};
constexpr Case kCases[] = {{6, 6, false}, {6, 6, true}, {8, 4, false}, {8, 4, true}};

Tensor positions() { return Tensor::of<int32_t>({2, 3}, {0, 1, 2, 7, 8, 100}); }

Tensor frequencies(int64_t rotated) {
  std::vector<double> values;
  for (int64_t i = 0; i < rotated / 2; ++i) {
    values.push_back(std::pow(10.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotated)));
  }
  return Tensor::of<double>({rotated / 2}, values);
}

Build rope_of(bool interleaved, double factor = kFactor) {
  return [=](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
    return {rope(in[0], rope_table(in[1], in[2], factor), interleaved)};
  };
}

std::vector<double> naive(const Tensor& x, const Case& form) {
  const Tensor p = positions(), f = frequencies(form.rotated);
  std::vector<double> y = numbers(x);
  const int64_t heads = x.shape()[2], half = form.rotated / 2;
  for (int64_t token = 0; token < 6; ++token) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t base = (token * heads + h) * form.head_dim;
      for (int64_t i = 0; i < half; ++i) {
        const double angle = p.data<int32_t>()[token] * f.data<double>()[i];
        const int64_t first = base + (form.interleaved ? 2 * i : i);
        const int64_t second = base + (form.interleaved ? 2 * i + 1 : i + half);
        const double a = x.data<double>()[first], b = x.data<double>()[second];
        y[static_cast<size_t>(first)] = kFactor * (a * std::cos(angle) - b * std::sin(angle));
        y[static_cast<size_t>(second)] = kFactor * (b * std::cos(angle) + a * std::sin(angle));
      }
    }
  }
  return y;
}

TEST(Rope, EqualsPlainLoops) {
  for (const Case& form : kCases) {
    const Tensor x = random_tensor({2, 3, 2, form.head_dim}, 1);
    expect_close(
        evaluate({x, positions(), frequencies(form.rotated)}, rope_of(form.interleaved))[0],
        naive(x, form), 1e-13);
  }
}

TEST(Rope, Gradients) {
  for (const Case& form : kCases) {
    expect_gradients(
        {random_tensor({2, 3, 2, form.head_dim}, 1), positions(), frequencies(form.rotated)},
        rope_of(form.interleaved), {0});
  }
}

TEST(Rope, TheInverseRotatesBack) {
  for (const Case& form : kCases) {
    const Tensor x = random_tensor({2, 3, 2, form.head_dim}, 1);
    const Tensor back = evaluate(
        {x, positions(), frequencies(form.rotated)}, [&](Graph& g, const std::vector<Value>& in) {
          const RopeTable table = rope_table(in[1], in[2], 1);
          const Value y = rope(in[0], table, form.interleaved);
          return std::vector<Value>{g.add1(kRope, {y, table.cos, table.sin},
                                           {{"interleaved", form.interleaved}, {"inverse", true}})};
        })[0];
    expect_close(back, numbers(x), 1e-14);
  }
}

// What makes it a position embedding: scores depend on the distance of positions alone.
TEST(Rope, ScoresDependOnDistanceAlone) {
  const Tensor q = random_tensor({1, 1, 1, 6}, 1), k = random_tensor({1, 1, 1, 6}, 2);
  const auto score = [&](int32_t query, int32_t key) {
    const auto rotated = [](const Tensor& x, int32_t position) {
      return numbers(evaluate({x, Tensor::of<int32_t>({1, 1}, {position}), frequencies(6)},
                              rope_of(false, 1))[0]);
    };
    const std::vector<double> a = rotated(q, query), b = rotated(k, key);
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  EXPECT_NEAR(score(5, 2), score(105, 102), 1e-12);
  EXPECT_GT(std::abs(score(5, 2) - score(6, 2)), 1e-3);
}

TEST(Rope, Errors) {
  EXPECT_THAT(
      error_of([] {
        build_graph({random_tensor({2, 3, 2, 4}, 1), positions(), frequencies(6)}, rope_of(false));
      }),
      AllOf(HasSubstr("rope"), HasSubstr("f64[2, 3, 2, 4]"), HasSubstr("f64[2, 3, 3]")));
  EXPECT_THAT(
      error_of([] {
        build_graph({random_tensor({2, 4, 2, 6}, 1), positions(), frequencies(6)}, rope_of(false));
      }),
      AllOf(HasSubstr("f64[2, 4, 2, 6]"), HasSubstr("f64[2, 3, 3]")));
  EXPECT_THAT(error_of([] {
                build_graph({random_tensor({2, 3, 2, 6}, 1), positions(), frequencies(6)},
                            [](Graph& g, const std::vector<Value>& in) {
                              const Value y = rope_of(false)(g, in)[0];
                              return gradients(reduce_sum(y, {0, 1, 2, 3}), std::vector{in[2]});
                            });
              }),
              HasSubstr("cos"));
}

}  // namespace
}  // namespace graft::testing
