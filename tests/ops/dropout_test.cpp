#include "ops/dropout.h"

#include <gmock/gmock.h>

#include "ops/helpers.h"
#include "support/errors.h"

namespace graft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Counters {
  uint32_t seed0 = 0, seed1 = 0, first_row = 0, step = 0, name_hash = 0;
};

std::vector<Tensor> with_counters(const Tensor& x, const Counters& c) {
  return {x, Tensor::of<uint32_t>({2}, {c.seed0, c.seed1}), u32_scalar(c.first_row),
          u32_scalar(c.step), u32_scalar(c.name_hash)};
}

Build dropout_of(double p) {
  return [p](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
    return {dropout(in[0], p, {in[1], in[2], in[3], in[4]})};
  };
}

Tensor ones(Shape shape) {
  Tensor x = Tensor::empty(DType::kF64, std::move(shape));
  for (int64_t i = 0; i < x.elements(); ++i) x.data<double>()[i] = 1;
  return x;
}

// The words themselves: element e is kept with p = u / 2^32 and dropped with p = (u + 1) / 2^32.
void expect_words(const Counters& counters, const std::vector<uint32_t>& words) {
  const auto count = static_cast<int64_t>(words.size());
  const auto in = with_counters(ones({1, 1, count}), counters);
  for (size_t e = 0; e < words.size(); ++e) {
    const double at = std::ldexp(words[e], -32), above = std::ldexp(words[e] + 1.0, -32);
    EXPECT_NE(numbers(evaluate(in, dropout_of(at))[0])[e], 0) << e;
    EXPECT_EQ(numbers(evaluate(in, dropout_of(above))[0])[e], 0) << e;
  }
}

// Known answers published with the algorithm (Random123, kat_vectors: philox4x32 10).
TEST(Dropout, TheBitsArePhilox) {
  expect_words({}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  // Elements from the second block on, other rows, seeds, steps and names: through base/random.h.
  const Counters c{.seed0 = 0xa4093822,
                   .seed1 = 0x299f31d0,
                   .first_row = 0xfffffffe,
                   .step = 0x13198a2e,
                   .name_hash = 0x03707344};
  std::vector<uint32_t> words;
  for (uint32_t block = 0; block < 2; ++block) {
    const auto lanes = philox4x32({block, c.first_row, c.step, c.name_hash}, {c.seed0, c.seed1});
    words.insert(words.end(), lanes.begin(), lanes.end());
  }
  words.resize(7);
  expect_words(c, words);
}

std::vector<double> naive(const Tensor& x, const Counters& c, double p) {
  const int64_t row = x.shape()[1] * x.shape()[2];
  std::vector<double> y = numbers(x);
  for (int64_t i = 0; i < x.elements(); ++i) {
    const auto element = static_cast<uint32_t>(i % row);
    const auto global_row = c.first_row + static_cast<uint32_t>(i / row);
    const uint32_t word =
        philox4x32({element / 4, global_row, c.step, c.name_hash}, {c.seed0, c.seed1})[element % 4];
    double& value = y[static_cast<size_t>(i)];
    value = word >= std::floor(p * 4294967296.0) ? value / (1 - p) : 0;
  }
  return y;
}

TEST(Dropout, EqualsPlainLoopsAndKeepsTheShareThatItShould) {
  const Counters c{.seed0 = 1, .seed1 = 2, .first_row = 3, .step = 4, .name_hash = 5};
  for (const double p : {0.0, 0.1, 0.5, 0.9}) {
    const Tensor x = random_tensor({3, 7, 311}, 1);
    const std::vector<double> y = naive(x, c, p);
    expect_close(evaluate(with_counters(x, c), dropout_of(p))[0], y, 1e-14);
    double kept = 0;
    for (const double value : y) kept += value != 0 ? 1 : 0;
    const auto n = static_cast<double>(y.size());
    EXPECT_NEAR(kept / n, 1 - p, 5 * std::sqrt(p * (1 - p) / n) + 1e-12);
  }
}

// A row has the same mask wherever it stands in a batch: micro-batches and devices change nothing.
TEST(Dropout, TheMaskOfARowDoesNotDependOnTheBatch) {
  const Tensor x = random_tensor({4, 3, 10}, 1);
  const Counters c{.seed0 = 9};
  const Tensor whole = evaluate(with_counters(x, c), dropout_of(0.3))[0];
  for (int64_t row = 0; row < 4; ++row) {
    Counters shifted = c;
    shifted.first_row = static_cast<uint32_t>(row);
    const Tensor one = x.rows(row, row + 1);
    expect_same_bytes(evaluate(with_counters(one, shifted), dropout_of(0.3))[0],
                      whole.rows(row, row + 1));
  }
}

TEST(Dropout, TheGradientHasTheSameMask) {
  const auto in = with_counters(random_tensor({2, 3, 5}, 1), {.seed0 = 11, .step = 2});
  expect_gradients(in, dropout_of(0.4));
  expect_gradients(in, dropout_of(0.0));
  const Tensor mask =
      evaluate(with_counters(ones({2, 3, 5}), {.seed0 = 11, .step = 2}), dropout_of(0.4))[0];
  const Tensor gradient = evaluate(in, [](Graph& g, const std::vector<Value>& v) {
    return gradients(reduce_sum(dropout_of(0.4)(g, v)[0], {0, 1, 2}), std::vector{v[0]});
  })[0];
  expect_same_bytes(gradient, mask);
}

TEST(Dropout, Errors) {
  EXPECT_THAT(error_of([] {
                build_graph(with_counters(random_tensor({2, 3}, 1), {}), dropout_of(0.5));
              }),
              AllOf(HasSubstr("dropout"), HasSubstr("f64[2, 3]")));
  EXPECT_THAT(error_of([] {
                build_graph(with_counters(random_tensor({2, 3, 1}, 1), {}), dropout_of(1));
              }),
              HasSubstr("[0, 1)"));
}

}  // namespace
}  // namespace graft::testing
