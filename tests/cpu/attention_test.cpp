#include "ops/attention.h"

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

struct Case {
  int64_t batch, queries, keys, heads, key_heads, width, value_width;
  int32_t window = kNoWindow, offset = 0;
  int segments = 1;  // packed sequences in a row, with padding behind
  double softcap = 0;
  bool sinks = false;
};

std::vector<int32_t> segments_for(int64_t batch, int64_t length, int segments) {
  std::vector<int32_t> values;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < length; ++i) {
      // The last sequence is padding; lengths differ from row to row.
      const int64_t piece =
          std::min<int64_t>(i * segments / length + (i % 7 == 0 && b == 1 ? 1 : 0), segments - 1);
      values.push_back(segments == 1 ? 1 : static_cast<int32_t>((piece + 1) % segments));
    }
  }
  return values;
}

std::vector<Tensor> operands(const Case& c, DType dtype) {
  std::vector<Tensor> inputs{
      random_tensor({c.batch, c.queries, c.heads, c.width}, 1, 2, dtype),
      random_tensor({c.batch, c.keys, c.key_heads, c.width}, 2, 2, dtype),
      random_tensor({c.batch, c.keys, c.key_heads, c.value_width}, 3, 1, dtype)};
  const std::vector<int32_t> keys = segments_for(c.batch, c.keys, c.segments);
  std::vector<int32_t> queries;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t i = 0; i < c.queries; ++i) {
      const int64_t at = std::min<int64_t>(i + c.offset, c.keys - 1);
      queries.push_back(keys[static_cast<size_t>(b * c.keys + at)]);
    }
  }
  inputs.push_back(s32({c.batch, c.queries}, queries));
  inputs.push_back(s32({c.batch, c.keys}, keys));
  inputs.push_back(s32(c.window));
  inputs.push_back(s32(c.offset));
  if (c.sinks) inputs.push_back(random_tensor({c.heads}, 5, 2));
  return inputs;
}

Attributes attributes_of(const Case& c) {
  Attributes attributes{{"scale", 0.3}, {"softcap", c.softcap}};
  if (c.sinks) attributes.set("has_sinks", true);
  return attributes;
}

void check(const Case& c, DType dtype) {
  const bool narrow = dtype == DType::kBF16;
  const std::vector<Tensor> inputs = operands(c, dtype);
  const double tolerance = narrow ? 4e-3 : 2e-6;
  const std::vector<Tensor> forward = check_kernel(
      kAttention, inputs, attributes_of(c), {.tolerances = {tolerance, 2e-6, 2e-6}, .floor = 0.1});
  ASSERT_EQ(forward.size(), 3U);
  std::vector<Tensor> gradient{
      random_tensor({c.batch, c.queries, c.heads, c.value_width}, 6, 1, dtype),
      inputs[0],
      inputs[1],
      inputs[2],
      forward[0],
      forward[1]};
  gradient.insert(gradient.end(), inputs.begin() + 3, inputs.end());
  check_kernel(
      kAttentionGrad, gradient, attributes_of(c),
      {.tolerances = {narrow ? 4e-3 : 5e-6, narrow ? 4e-3 : 5e-6, tolerance, 1e-5}, .floor = 0.1});
}

TEST(AttentionKernel, Causal) {
  for (const Case& c :
       {Case{1, 1, 1, 1, 1, 4, 4}, Case{2, 5, 5, 2, 1, 8, 8}, Case{1, 64, 64, 3, 1, 16, 16},
        Case{2, 150, 150, 6, 2, 32, 32}, Case{1, 300, 300, 2, 2, 20, 20}}) {
    check(c, DType::kF32);
  }
}

TEST(AttentionKernel, InBF16) {
  check({.batch = 2,
         .queries = 150,
         .keys = 150,
         .heads = 6,
         .key_heads = 2,
         .width = 32,
         .value_width = 24,
         .segments = 3},
        DType::kBF16);
}

TEST(AttentionKernel, ValuesOfAnotherWidth) {
  check({.batch = 1,
         .queries = 70,
         .keys = 70,
         .heads = 4,
         .key_heads = 4,
         .width = 24,
         .value_width = 40},
        DType::kF32);
}

TEST(AttentionKernel, Windows) {
  for (const int32_t window : {1, 17, 100}) {
    check({.batch = 1,
           .queries = 260,
           .keys = 260,
           .heads = 2,
           .key_heads = 1,
           .width = 16,
           .value_width = 16,
           .window = window},
          DType::kF32);
  }
}

TEST(AttentionKernel, PackedSequencesWithPadding) {
  for (const int segments : {2, 3, 7}) {
    check({.batch = 2,
           .queries = 200,
           .keys = 200,
           .heads = 4,
           .key_heads = 2,
           .width = 16,
           .value_width = 16,
           .segments = segments},
          DType::kF32);
    check({.batch = 2,
           .queries = 200,
           .keys = 200,
           .heads = 3,
           .key_heads = 1,
           .width = 16,
           .value_width = 16,
           .window = 33,
           .segments = segments},
          DType::kF32);
  }
}

TEST(AttentionKernel, SoftcapAndSinks) {
  const Case base{.batch = 1,
                  .queries = 140,
                  .keys = 140,
                  .heads = 4,
                  .key_heads = 2,
                  .width = 16,
                  .value_width = 16};
  for (int variant = 1; variant < 4; ++variant) {
    Case c = base;
    if ((variant & 1) != 0) c.softcap = 3;
    c.sinks = (variant & 2) != 0;
    check(c, DType::kF32);
    c.segments = 3;
    check(c, DType::kF32);
  }
}

TEST(AttentionKernel, DecodingAgainstACache) {
  check({.batch = 2,
         .queries = 1,
         .keys = 300,
         .heads = 6,
         .key_heads = 2,
         .width = 32,
         .value_width = 32,
         .offset = 211},
        DType::kF32);
  check({.batch = 1,
         .queries = 40,
         .keys = 256,
         .heads = 3,
         .key_heads = 1,
         .width = 32,
         .value_width = 32,
         .window = 50,
         .offset = 100},
        DType::kF32);
}

// Queries that see nothing at all: out 0 and lse -inf (the sink, if there is one), and no gradient.
TEST(AttentionKernel, QueriesThatSeeNothing) {
  for (const bool sinks : {false, true}) {
    const Case c{.batch = 1,
                 .queries = 70,
                 .keys = 70,
                 .heads = 2,
                 .key_heads = 1,
                 .width = 8,
                 .value_width = 8,
                 .sinks = sinks};
    std::vector<Tensor> inputs = operands(c, DType::kF32);
    for (int i : {3, 4, 66, 67, 68, 69}) inputs[3].data<int32_t>()[i] = 9;
    const std::vector<Tensor> forward =
        check_kernel(kAttention, inputs, attributes_of(c), {.tolerance = 2e-6, .floor = 0.1});
    for (int i = 0; i < 8; ++i) EXPECT_EQ(forward[0].data<float>()[3 * 16 + i], 0);
    std::fill_n(inputs[3].data<int32_t>(), 70, 9);
    const std::vector<Tensor> nothing =
        check_kernel(kAttention, inputs, attributes_of(c), {.tolerance = 2e-6, .floor = 0.1});
    EXPECT_EQ(nothing[2].data<float>()[0], -INFINITY);
    std::vector<Tensor> gradient{
        random_tensor({1, 70, 2, 8}, 6), inputs[0], inputs[1], inputs[2], nothing[0], nothing[1]};
    gradient.insert(gradient.end(), inputs.begin() + 3, inputs.end());
    check_kernel(kAttentionGrad, gradient, attributes_of(c), {.tolerance = 2e-6, .floor = 0.1});
  }
}

// A single-position call must give what the whole sequence gave, to rounding: decoding is
// training's twin.
TEST(AttentionKernel, DecodingGivesWhatTheWholeSequenceGave) {
  const Case whole{.batch = 1,
                   .queries = 200,
                   .keys = 200,
                   .heads = 6,
                   .key_heads = 2,
                   .width = 32,
                   .value_width = 32};
  const std::vector<Tensor> inputs = operands(whole, DType::kF32);
  const OneNode one(kAttention, inputs, attributes_of(whole));
  const Tensor out = run_kernel(one, inputs, 2)[0];
  for (const int32_t position : {0, 63, 64, 199}) {
    std::vector<Tensor> single = inputs;
    single[0] = Tensor::empty(DType::kF32, {1, 1, 6, 32});
    std::memcpy(single[0].mutable_bytes(), inputs[0].bytes() + position * 6 * 32 * 4, 6 * 32 * 4);
    single[3] = s32({1, 1}, {1});
    single[6] = s32(position);
    const OneNode step(kAttention, single, attributes_of(whole));
    const Tensor row = run_kernel(step, single, 2)[0];
    for (int i = 0; i < 6 * 32; ++i) {
      EXPECT_NEAR(row.data<float>()[i], out.data<float>()[position * 6 * 32 + i], 1e-5);
    }
  }
}

TEST(AttentionKernel, ANaNReachesItsRowsAndTheirGradient) {
  const Case c{.batch = 1,
               .queries = 100,
               .keys = 100,
               .heads = 2,
               .key_heads = 1,
               .width = 8,
               .value_width = 8};
  for (const size_t operand : {size_t{0}, size_t{1}}) {
    std::vector<Tensor> inputs = operands(c, DType::kF32);
    const int64_t row = operand == 0 ? 2 * 8 : 8;
    inputs[operand].data<float>()[50 * row] = std::nanf("");
    const OneNode one(kAttention, inputs, attributes_of(c));
    const std::vector<Tensor> out = run_kernel(one, inputs, 1);
    EXPECT_TRUE(std::isnan(out[0].data<float>()[50 * 16])) << operand;
    EXPECT_TRUE(std::isnan(out[1].data<float>()[50])) << operand;
    EXPECT_FALSE(std::isnan(out[0].data<float>()[49 * 16])) << operand;
  }
}

}  // namespace
}  // namespace graft::cpu::testing
