#include "ops/attention.h"

#include <gmock/gmock.h>

#include "ops/attention_blocks.h"
#include "ops/helpers.h"
#include "ops/naive_attention.h"
#include "support/errors.h"

namespace graft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Every form of the mask and of the heads, with ragged blocks of 3 queries and 2 keys too.
const std::vector<AttentionProblem>& problems() {
  static const std::vector<AttentionProblem> all{
      {},
      {.batch = 2, .queries = 7, .keys = 7, .heads = 4, .key_heads = 2, .value_width = 5},
      {.queries = 6, .keys = 6, .heads = 3, .key_heads = 1, .window = 2},
      {.queries = 5, .keys = 9, .query_offset = 4},
      {.queries = 1, .keys = 8, .heads = 4, .key_heads = 1, .query_offset = 5},
      {.queries = 3, .keys = 8, .window = 3, .query_offset = 4, .sinks = true},
      {.batch = 2, .queries = 8, .keys = 8, .sinks = true, .segment = 3},
      {.batch = 2,
       .queries = 8,
       .keys = 8,
       .softcap = 0.8,
       .window = 3,
       .segment = 4,
       .padding = 2},
      // Queries that see no key: before the first, and behind the window's end.
      {.queries = 6, .keys = 4, .query_offset = -3},
      {.queries = 4, .keys = 4, .window = 2, .query_offset = 6},
      {.queries = 6, .keys = 4, .query_offset = -3, .sinks = true},
      // Queries of segment 0 beyond the last key: what pads a ragged block is not seen either.
      {.queries = 3, .keys = 5, .query_offset = 3, .padding = 2},
  };
  return all;
}

std::vector<Tensor> gradients_of(const AttentionProblem& p, const std::vector<Tensor>& in,
                                 const Tensor& d_out, AttentionBlockSizes sizes) {
  std::vector<Tensor> all = in;
  all.push_back(d_out);
  return evaluate(all, [&](Graph& g, const std::vector<Value>& v) {
    const std::vector<Value> forward(v.begin(), v.end() - 1);
    const std::vector<Value> r = attention_in_blocks(g, forward, p.attributes(), sizes);
    std::vector<Value> operands{v.back(), v[0], v[1], v[2], r[0], r[1]};
    operands.insert(operands.end(), forward.begin() + 3, forward.end());
    return attention_grad_in_blocks(g, operands, p.attributes(), sizes);
  });
}

Tensor cotangent(const AttentionProblem& p) {
  return random_tensor({p.batch, p.queries, p.heads, p.value_width}, 9);
}

void expect_forward(const AttentionProblem& p, AttentionBlockSizes sizes) {
  const std::vector<Tensor> in = p.inputs();
  const NaiveAttention naive(p, in, cotangent(p));
  const std::vector<Tensor> results = evaluate(in, [&](Graph& g, const std::vector<Value>& v) {
    return attention_in_blocks(g, v, p.attributes(), sizes);
  });
  expect_close(results[0], naive.out, 1e-13, "out");
  expect_close(results[1], naive.lse, 1e-13, "lse");
  expect_close(results[2], {naive.max_logit}, 1e-13, "max_logit");
}

void expect_backward(const AttentionProblem& p, AttentionBlockSizes sizes) {
  const std::vector<Tensor> in = p.inputs();
  const Tensor d_out = cotangent(p);
  const NaiveAttention naive(p, in, d_out);
  const std::vector<Tensor> results = gradients_of(p, in, d_out, sizes);
  expect_close(results[0], naive.dq, 1e-12, "dq");
  expect_close(results[1], naive.dk, 1e-12, "dk");
  expect_close(results[2], naive.dv, 1e-12, "dv");
  if (p.sinks) expect_close(results[3], naive.d_sinks, 1e-12, "d_sinks");
}

TEST(Attention, EqualsTheDefinition) {
  for (size_t i = 0; i < problems().size(); ++i) {
    SCOPED_TRACE(i);
    for (const AttentionBlockSizes sizes : {AttentionBlockSizes{}, {3, 2}, {1, 5}, {4, 4}}) {
      expect_forward(problems()[i], sizes);
      expect_backward(problems()[i], sizes);
    }
  }
}

// Longer than a block of the default size, in both directions.
TEST(Attention, EqualsTheDefinitionOverSeveralBlocks) {
  const AttentionProblem p{.queries = 150,
                           .keys = 290,
                           .heads = 2,
                           .key_heads = 1,
                           .width = 2,
                           .value_width = 3,
                           .window = 130,
                           .query_offset = 140,
                           .sinks = true,
                           .segment = 200};
  expect_forward(p, {});
  expect_backward(p, {});
}

TEST(Attention, Gradients) {
  for (size_t i = 0; i < problems().size(); ++i) {
    SCOPED_TRACE(i);
    const AttentionProblem& p = problems()[i];
    std::vector<size_t> wrt{0, 1, 2};
    if (p.sinks) wrt.push_back(7);
    expect_gradients(
        p.inputs(),
        [&](Graph&, const std::vector<Value>& v) -> std::vector<Value> {
          return {attend(p, v)[0]};
        },
        wrt);
  }
}

// Rows that see no key: out 0, lse -inf, no gradient, and never NaN.
TEST(Attention, RowsWithoutKeysGiveZero) {
  const AttentionProblem p{.queries = 3, .keys = 3, .query_offset = -5};
  const std::vector<Tensor> in = p.inputs();
  const std::vector<Tensor> results =
      evaluate(in, [&](Graph&, const std::vector<Value>& v) { return attend(p, v); });
  for (const double x : numbers(results[0])) EXPECT_EQ(x, 0);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double x : numbers(results[1])) EXPECT_EQ(x, -infinity);
  EXPECT_EQ(numbers(results[2])[0], -infinity);
  for (const Tensor& gradient : gradients_of(p, in, cotangent(p), {2, 2})) {
    for (const double x : numbers(gradient)) EXPECT_EQ(x, 0);
  }
}

// Rows that pad a ragged block would score 0, more than any of these.
TEST(Attention, TheLargestLogitIsOfRealQueries) {
  AttentionProblem p{.padding = 4};
  std::vector<Tensor> in = p.inputs();
  for (int64_t i = 0; i < in[0].elements(); ++i) {
    in[0].data<double>()[i] = 1;
    in[1].data<double>()[i] = -1;
  }
  const Tensor largest = evaluate(in, [&](Graph& g, const std::vector<Value>& v) {
    return attention_in_blocks(g, v, p.attributes(), {3, 2});
  })[2];
  expect_close(largest, {-3 * p.scale}, 1e-14);
}

// What diverged is seen to have diverged.
TEST(Attention, NaNIsNotHidden) {
  const AttentionProblem p;
  std::vector<Tensor> in = p.inputs();
  in[0].data<double>()[0] = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Tensor> results =
      evaluate(in, [&](Graph&, const std::vector<Value>& v) { return attend(p, v); });
  EXPECT_TRUE(std::isnan(numbers(results[0])[0]));
  EXPECT_TRUE(std::isnan(numbers(results[1])[0]));
}

// Two sequences packed into one row are two sequences, in values and in gradients.
TEST(Attention, PackedSegmentsEqualSeparateOnes) {
  AttentionProblem packed{.queries = 8, .keys = 8, .segment = 4};
  AttentionProblem separate{.batch = 2};
  const std::vector<Tensor> in = packed.inputs();
  std::vector<Tensor> apart = separate.inputs();
  for (size_t i = 0; i < 3; ++i) apart[i] = in[i].reshaped(apart[i].shape());
  const auto out = [](const AttentionProblem& p, const std::vector<Tensor>& tensors) {
    return evaluate(tensors, [&](Graph&, const std::vector<Value>& v) { return attend(p, v); })[0];
  };
  expect_close(out(packed, in), numbers(out(separate, apart)), 1e-14);
  const Tensor d_out = cotangent(packed);
  const auto together = gradients_of(packed, in, d_out, {3, 3});
  const auto alone = gradients_of(separate, apart, d_out.reshaped({2, 4, 2, 3}), {3, 3});
  for (size_t i = 0; i < 3; ++i) expect_close(together[i], numbers(alone[i]), 1e-13);
}

// A query at the end sees the same through a cache of keys as in the whole sequence.
TEST(Attention, DecodingEqualsTheWholeSequence) {
  const AttentionProblem whole{.queries = 6, .keys = 6, .window = 4};
  AttentionProblem last = whole;
  last.queries = 1;
  last.query_offset = 5;
  const std::vector<Tensor> in = whole.inputs();
  std::vector<Tensor> one = last.inputs();
  one[0] = in[0].reshaped({6, 2, 3}).rows(5, 6).reshaped({1, 1, 2, 3}).clone();
  const auto out = [](const AttentionProblem& p, const std::vector<Tensor>& tensors) {
    return numbers(
        evaluate(tensors, [&](Graph&, const std::vector<Value>& v) { return attend(p, v); })[0]);
  };
  const std::vector<double> all = out(whole, in);
  expect_close(Tensor::of<double>({6}, out(last, one)), {all.end() - 6, all.end()}, 1e-14);
}

TEST(Attention, LowPrecisionComputesInF32AndRoundsOnce) {
  AttentionProblem p{.batch = 2, .queries = 7, .keys = 7, .heads = 4, .key_heads = 2};
  p.dtype = DType::kBF16;
  const std::vector<Tensor> in = p.inputs();
  const NaiveAttention naive(p, in, cotangent(p));
  const std::vector<Tensor> results =
      evaluate(in, [&](Graph&, const std::vector<Value>& v) { return attend(p, v); });
  EXPECT_EQ(results[0].dtype(), DType::kBF16);
  EXPECT_EQ(results[1].dtype(), DType::kF32);
  expect_close(results[1], naive.lse, 1e-6);
  const std::vector<double> out = numbers(results[0]);
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_NEAR(out[i], naive.out[i], std::abs(naive.out[i]) / 256 + 1e-6);
  }
}

int64_t largest_value(const Graph& graph) {
  int64_t largest = 0;
  for (int id = 0; id < graph.value_count(); ++id) {
    largest = std::max(largest, graph.type(id).elements());
  }
  for (const Node& node : graph.nodes()) {
    for (const auto& body : node.bodies) largest = std::max(largest, largest_value(*body));
  }
  return largest;
}

TEST(Attention, NoBufferIsOfTheSizeOfAllScores) {
  const AttentionProblem p{
      .queries = 2048, .keys = 2048, .heads = 1, .key_heads = 1, .width = 2, .value_width = 2};
  const auto graph = decompose(*build_graph(p.inputs(), [&](Graph&, const std::vector<Value>& v) {
    const Value out = attend(p, v)[0];
    return gradients(reduce_sum(out, {0, 1, 2, 3}), std::vector{v[0], v[1], v[2]});
  }));
  EXPECT_LE(largest_value(*graph), 128 * 128);
}

TEST(Attention, Errors) {
  const auto error = [](size_t operand, const Tensor& replacement) {
    const AttentionProblem p;
    std::vector<Tensor> in = p.inputs();
    in[operand] = replacement;
    return error_of([&] {
      build_graph(in, [&](Graph&, const std::vector<Value>& v) { return attend(p, v); });
    });
  };
  EXPECT_THAT(
      error(1, random_tensor({1, 4, 2, 5}, 1)),
      AllOf(HasSubstr("attention"), HasSubstr("f64[1, 4, 2, 3]"), HasSubstr("f64[1, 4, 2, 5]")));
  EXPECT_THAT(error(2, random_tensor({1, 5, 2, 3}, 1)), HasSubstr("f64[1, 5, 2, 3]"));
  EXPECT_THAT(error(0, random_tensor({1, 4, 3, 3}, 1)), HasSubstr("multiple"));
  EXPECT_THAT(error(5, Tensor::of<int32_t>({1}, {1})), HasSubstr("window must be s32[]"));
}

TEST(Attention, RefusesAGradientThroughTheDenominator) {
  const AttentionProblem p;
  EXPECT_THAT(error_of([&] {
                build_graph(p.inputs(), [&](Graph&, const std::vector<Value>& v) {
                  return gradients(reduce_sum(attend(p, v)[1], {0, 1, 2}), std::vector{v[0]});
                });
              }),
              AllOf(HasSubstr("attention"), HasSubstr("lse")));
}

}  // namespace
}  // namespace graft::testing
