#include "ops/loss.h"

#include <gmock/gmock.h>

#include <limits>

#include "ops/helpers.h"
#include "support/errors.h"

namespace graft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Problem {
  Tensor h, head, targets, weights;
  std::vector<Tensor> inputs() const { return {h, head, targets, weights}; }
};

Problem problem(int64_t rows, int64_t width, int64_t vocabulary, DType dtype = DType::kF64) {
  std::vector<int32_t> targets;
  for (int64_t n = 0; n < rows; ++n) {
    targets.push_back(n % 5 == 3 ? -100 : static_cast<int32_t>((n * 7 + 1) % vocabulary));
  }
  return {random_tensor({rows, width}, 1, 2, dtype),
          random_tensor({vocabulary, width}, 2, 1, dtype), Tensor::of<int32_t>({rows}, targets),
          random_tensor({rows}, 3, 1, dtype == DType::kF64 ? dtype : DType::kF32)};
}

Build loss_of(double softcap = 0) {
  return [softcap](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
    return {cross_entropy(in[0], in[1], in[2], in[3], softcap).loss};
  };
}

struct Expected {
  double loss = 0;
  std::vector<double> nll, dh, dw;
};

Expected naive(const Problem& p, double softcap) {
  const int64_t rows = p.h.shape()[0], width = p.h.shape()[1], vocabulary = p.head.shape()[0];
  const std::vector<double> h = numbers(p.h), w = numbers(p.head), weights = numbers(p.weights);
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  Expected e;
  e.dh.resize(h.size());
  e.dw.resize(w.size());
  for (int64_t n = 0; n < rows; ++n) {
    const int32_t target = p.targets.data<int32_t>()[n];
    std::vector<double> score(at(vocabulary));
    double total = 0;
    for (int64_t v = 0; v < vocabulary; ++v) {
      double s = 0;
      for (int64_t i = 0; i < width; ++i) s += h[at(n * width + i)] * w[at(v * width + i)];
      score[at(v)] = softcap > 0 ? softcap * std::tanh(s / softcap) : s;
      total += std::exp(score[at(v)]);
    }
    e.nll.push_back(target < 0 ? 0 : std::log(total) - score[at(target)]);
    if (target < 0) continue;
    e.loss += weights[at(n)] * e.nll.back();
    for (int64_t v = 0; v < vocabulary; ++v) {
      double g = weights[at(n)] * (std::exp(score[at(v)]) / total - (v == target ? 1 : 0));
      if (softcap > 0) g *= 1 - std::pow(score[at(v)] / softcap, 2);
      for (int64_t i = 0; i < width; ++i) {
        e.dh[at(n * width + i)] += g * w[at(v * width + i)];
        e.dw[at(v * width + i)] += g * h[at(n * width + i)];
      }
    }
  }
  return e;
}

std::vector<Value> with_grad(Graph& g, const std::vector<Value>& in, double softcap) {
  return g.add(kCrossEntropyWithGrad, in, {{"softcap", softcap}, {"weight_grad", true}});
}

// One chunk, several, and ragged ones.
TEST(CrossEntropy, EqualsPlainLoops) {
  for (const int64_t rows : {1, 7, 128, 300}) {
    for (const double softcap : {0.0, 1.5}) {
      const Problem p = problem(rows, 5, 11);
      const Expected expected = naive(p, softcap);
      const std::vector<Tensor> plain =
          evaluate(p.inputs(), [&](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
            const CrossEntropyResult r = cross_entropy(in[0], in[1], in[2], in[3], softcap);
            return {r.loss, r.nll};
          });
      expect_close(plain[0], {expected.loss}, 1e-12);
      expect_close(plain[1], expected.nll, 1e-13);
      const std::vector<Tensor> all = evaluate(
          p.inputs(),
          [&](Graph& g, const std::vector<Value>& in) { return with_grad(g, in, softcap); });
      expect_same_bytes(all[0], plain[0], "loss");
      expect_same_bytes(all[1], plain[1], "nll");
      expect_close(all[2], expected.dh, 1e-12, "dh");
      expect_close(all[3], expected.dw, 1e-12, "dw");
    }
  }
}

TEST(CrossEntropy, LowPrecisionComputesInF32) {
  const Problem p = problem(9, 5, 11, DType::kBF16);
  const Expected expected = naive(p, 0);
  const std::vector<Tensor> all = evaluate(
      p.inputs(), [](Graph& g, const std::vector<Value>& in) { return with_grad(g, in, 0); });
  EXPECT_EQ(all[1].dtype(), DType::kF32);
  EXPECT_EQ(all[2].dtype(), DType::kBF16);
  EXPECT_EQ(all[3].dtype(), DType::kF32);
  expect_close(all[1], expected.nll, 1e-6);
  expect_close(all[2], expected.dh, 1.0 / 256);
  expect_close(all[3], expected.dw, 1e-6);
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  Problem p = problem(4, 3, 6);
  for (int64_t i = 0; i < p.h.elements(); ++i) p.h.data<double>()[i] *= 1e4;
  for (const Tensor& tensor : evaluate(
           p.inputs(), [](Graph&g, const std::vector<Value>&in) { return with_grad(g, in, 0); })) {
    for (const double x : numbers(tensor)) EXPECT_TRUE(std::isfinite(x));
  }
}

// Whatever stands in an ignored row, its weight too, changes nothing.
TEST(CrossEntropy, IgnoresRowsWithANegativeTarget) {
  Problem p = problem(8, 4, 6);
  const auto results = [&] {
    return evaluate(p.inputs(),
                    [](Graph& g, const std::vector<Value>& in) { return with_grad(g, in, 0); });
  };
  const std::vector<Tensor> before = results();
  p.h = p.h.clone();
  p.weights = p.weights.clone();
  for (int64_t i = 0; i < 4; ++i) p.h.data<double>()[3 * 4 + i] = 50;
  p.weights.data<double>()[3] = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Tensor> after = results();
  for (size_t i = 0; i < before.size(); ++i) expect_same_bytes(before[i], after[i]);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(after[2].data<double>()[3 * 4 + i], 0);
}

TEST(CrossEntropy, Gradients) {
  for (const double softcap : {0.0, 2.0}) {
    expect_gradients(problem(6, 3, 5).inputs(), loss_of(softcap));
    expect_gradients(problem(1, 4, 3).inputs(), loss_of(softcap), {0});
    expect_gradients(problem(130, 1, 3).inputs(), loss_of(softcap), {0, 1});
  }
}

std::unique_ptr<Graph> training_graph(bool train_head, double factor) {
  return merge_common_subexpressions(
      *build_graph(problem(6, 3, 5).inputs(), [=](Graph& g, const std::vector<Value>& in) {
        const Value loss = loss_of()(g, in)[0];
        std::vector<Value> trained{in[0]};
        if (train_head) trained.push_back(in[1]);
        std::vector<Value> results = gradients(factor == 1 ? loss : loss * factor, trained);
        results.push_back(loss);
        return results;
      }));
}

TEST(CrossEntropy, IsComputedOnceInAStepThatTrains) {
  for (const bool train_head : {false, true}) {
    const auto graph = training_graph(train_head, 1);
    EXPECT_EQ(count_ops(*graph, kCrossEntropy), 0);
    EXPECT_EQ(count_ops(*graph, kCrossEntropyWithGrad), 1);
    EXPECT_EQ(count_ops(*graph, kMul), 0);  // a unit cotangent multiplies nothing
    for (const Node& node : graph->nodes()) {
      if (node.op == &kCrossEntropyWithGrad) {
        EXPECT_EQ(node.results.size(), train_head ? 4U : 3U);
      }
    }
  }
  EXPECT_GT(count_ops(*training_graph(false, 0.5), kMul), 0);
}

TEST(CrossEntropy, RefusesAGradientThroughTheRows) {
  EXPECT_THAT(error_of([] {
                build_graph(problem(6, 3, 5).inputs(), [](Graph&, const std::vector<Value>& in) {
                  const Value nll = cross_entropy(in[0], in[1], in[2], in[3]).nll;
                  return gradients(reduce_sum(nll, {0}), std::vector{in[0]});
                });
              }),
              AllOf(HasSubstr("cross_entropy"), HasSubstr("nll")));
}

TEST(CrossEntropy, Errors) {
  Problem p = problem(6, 3, 5);
  p.head = random_tensor({5, 4}, 2);
  EXPECT_THAT(error_of([&] { build_graph(p.inputs(), loss_of()); }),
              AllOf(HasSubstr("cross_entropy"), HasSubstr("f64[6, 3]"), HasSubstr("f64[5, 4]")));
  p = problem(6, 3, 5);
  p.targets = Tensor::of<int32_t>({2}, {0, 1});
  EXPECT_THAT(error_of([&] { build_graph(p.inputs(), loss_of()); }),
              AllOf(HasSubstr("targets must be s32[6]"), HasSubstr("s32[2]")));
}

}  // namespace
}  // namespace graft::testing
