#include "ir/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "ir/primitives.h"
#include "ir/scan.h"
#include "support/evaluate.h"

namespace graft {
namespace {

using ::testing::ElementsAre;
using testing::evaluate;
using testing::evaluate1;
using ::testing::HasSubstr;
using Values = std::vector<Value>;

constexpr InterpreterOptions kF64{.precision = InterpreterOptions::kF64};

TEST(Interpreter, RoundsEveryResultToItsDeclaredType) {
  const Tensor third = Tensor::of<float>({1}, {1});
  const auto build = [](Graph&, const Values& in) { return in[0] / 3 * 3 - 1; };
  EXPECT_EQ(evaluate1({third}, build).span<float>()[0], 1.0f / 3.0f * 3.0f - 1.0f);

  // In bf16, 1 + 2^-8 is halfway to the next value and goes to the even one: 1.
  const Tensor bf16 = Tensor::of<float>({1}, {1}).as(DType::kBF16);
  const auto nudge = [](Graph&, const Values& in) { return in[0] + 0.00390625; };
  EXPECT_EQ(evaluate1({bf16}, nudge).as(DType::kF32).span<float>()[0], 1);
  const Tensor exact = evaluate1({bf16}, nudge, kF64);
  EXPECT_EQ(exact.dtype(), DType::kF64);
  EXPECT_EQ(exact.span<double>()[0], 1.00390625);
}

TEST(Interpreter, F64KeepsEverythingInDouble) {
  const Tensor x = Tensor::of<double>({2}, {0.1, 1.0 / 3});
  Graph g;
  const Value in = g.input("x", {DType::kF32, {2}});
  const Value low = convert(convert(in, DType::kBF16), DType::kF32);
  g.output("y", low * 0.1);
  g.output("i", convert(low * 100, DType::kS32));
  const std::vector<Tensor> out = interpret(g, {{x}}, kF64);
  EXPECT_THAT(out[0].span<double>(), ElementsAre(0.1 * 0.1, 1.0 / 3 * 0.1));
  EXPECT_THAT(out[1].span<int32_t>(), ElementsAre(10, 33));
}

TEST(Interpreter, InputsAreChecked) {
  Graph g;
  g.output("y", g.input("x", {DType::kF32, {2}}));
  const auto message = [&](const std::vector<Tensor>& inputs, InterpreterOptions options) {
    try {
      interpret(g, inputs, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message({Tensor::zeros(DType::kF32, {2})}, {}), "");
  EXPECT_EQ(message({Tensor::zeros(DType::kF32, {3})}, {}),
            "input \"x\" is f32[2], and f32[3] was given");
  EXPECT_EQ(message({Tensor::zeros(DType::kF64, {2})}, {}),
            "input \"x\" is f32[2], and f64[2] was given");
  EXPECT_EQ(message({Tensor::zeros(DType::kF64, {2})}, kF64), "");
  EXPECT_EQ(message({Tensor()}, {}), "input \"x\" is f32[2], and nothing was given");
  EXPECT_THAT(message({}, {}), HasSubstr("1 inputs, and 0 were given"));
}

TEST(Interpreter, PackedFourBitIntegers) {
  Tensor packed = Tensor::zeros(DType::kS4, {3});
  packed.mutable_bytes()[0] = std::byte{0x7F};  // -1, then 7
  packed.mutable_bytes()[1] = std::byte{0x08};  // -8
  const std::vector<Tensor> out = evaluate({packed}, [](Graph&, const Values& in) {
    return Values{convert(in[0], DType::kF32), in[0]};
  });
  EXPECT_THAT(out[0].span<float>(), ElementsAre(-1, 7, -8));
  EXPECT_EQ(out[1].bytes()[0], std::byte{0x7F});
  EXPECT_EQ(out[1].bytes()[1], std::byte{0x08});
}

TEST(Interpreter, ScanWithEveryRole) {
  for (const bool reverse : {false, true}) {
    // carry' = carry * k + x_i + l_i; stacked: the old carry; list: x_i * l_i.
    const std::vector<Tensor> out = evaluate(
        {Tensor::of<float>({}, {1}), Tensor::of<float>({}, {2}), Tensor::of<float>({3}, {1, 2, 3}),
         Tensor::of<float>({}, {10}), Tensor::of<float>({}, {20}), Tensor::of<float>({}, {30})},
        [&](Graph& g, const Values& in) {
          const ScanResults results = scan(
              g, 3,
              {.carries = {in[0]},
               .invariants = {in[1]},
               .stacked = {in[2]},
               .lists = {{in[3], in[4], in[5]}}},
              [](ScanBody& body) {
                body.carry_out(
                    0, body.carry(0) * body.invariant(0) + body.stacked(0) + body.element(0));
                body.stacked_out(body.carry(0));
                body.list_out(body.stacked(0) * body.element(0));
              },
              reverse);
          return Values{results.carries[0], results.stacked[0], results.lists[0][0],
                        results.lists[0][1], results.lists[0][2]};
        });
    if (reverse) {
      // 1*2+33 = 35; 35*2+22 = 92; 92*2+11 = 195
      EXPECT_EQ(out[0].span<float>()[0], 195);
      EXPECT_THAT(out[1].span<float>(), ElementsAre(92, 35, 1));
    } else {
      // 1*2+11 = 13; 13*2+22 = 48; 48*2+33 = 129
      EXPECT_EQ(out[0].span<float>()[0], 129);
      EXPECT_THAT(out[1].span<float>(), ElementsAre(1, 13, 48));
    }
    EXPECT_EQ(out[2].span<float>()[0], 10);
    EXPECT_EQ(out[3].span<float>()[0], 40);
    EXPECT_EQ(out[4].span<float>()[0], 90);
  }
}

TEST(Interpreter, Case) {
  const auto body = [](double factor) {
    auto graph = std::make_shared<Graph>();
    const Value x = graph->input("x", {DType::kF32, {2}});
    graph->output("y", x * factor);
    return std::shared_ptr<const Graph>(graph);
  };
  for (const auto& [index, factor] : {std::pair{-1, 10}, {0, 10}, {1, 20}, {2, 30}, {5, 30}}) {
    const Tensor y =
        evaluate1({Tensor::of<int32_t>({}, {index}), Tensor::of<float>({2}, {1, 2})},
                  [&](Graph&, const Values& in) {
                    return case_of(in[0], Values{in[1]}, {body(10), body(20), body(30)})[0];
                  });
    EXPECT_THAT(y.span<float>(), ElementsAre(factor, 2 * factor));
  }
}

TEST(Interpreter, CompositesRunThroughTheirDecomposition) {
  static constexpr auto infer = [](const Call& call) -> std::vector<Type> {
    return {call.operands[0]};
  };
  static constexpr auto decomposed = [](Graph&, std::span<const Value> in, const Call& call) {
    return Values{in[0] * call.attributes.f64("factor")};
  };
  static const Op scale{.name = "scale", .infer = infer, .decompose = decomposed};
  const Tensor y = evaluate1({Tensor::of<float>({2}, {1, 2})}, [](Graph& g, const Values& in) {
    return g.add1(scale, {in[0]}, {{"factor", 4.0}});
  });
  EXPECT_THAT(y.span<float>(), ElementsAre(4, 8));
}

// High word of a 32 by 32 bit product, by 16-bit limbs: no 64-bit integers.
Value multiply_high(Value a, Value b) {
  const auto low = [](Value x) { return x & splat(x.graph(), 0xFFFF, x.type()); };
  const auto high = [](Value x) { return shift_right(x, 16); };
  const Value middle = high(low(a) * low(b)) + low(high(a) * low(b)) + low(low(a) * high(b));
  return high(a) * high(b) + high(high(a) * low(b)) + high(low(a) * high(b)) + high(middle);
}

// Philox4x32-10 in u32 primitives gives the bits of base/random.h.
TEST(Interpreter, PhiloxInPrimitives) {
  Graph g;
  Values counter, key;
  for (int i = 0; i < 4; ++i) counter.push_back(g.input("counter", {DType::kU32, {3}}));
  for (int i = 0; i < 2; ++i) key.push_back(g.input("key", {DType::kU32, {3}}));
  const auto constant = [&](uint32_t v) { return splat(g, v, {DType::kU32, {3}}); };
  for (int round = 0; round < 10; ++round) {
    const Value m0 = constant(0xD2511F53), m1 = constant(0xCD9E8D57);
    counter = {multiply_high(m1, counter[2]) ^ counter[1] ^ key[0], m1 * counter[2],
               multiply_high(m0, counter[0]) ^ counter[3] ^ key[1], m0 * counter[0]};
    key = {key[0] + constant(0x9E3779B9), key[1] + constant(0xBB67AE85)};
  }
  for (Value v : counter) g.output("x", v);

  const uint32_t counters[3][4] = {
      {0, 0, 0, 0}, {~0u, ~0u, ~0u, ~0u}, {0x243F6A88, 1, 2, 0x85A308D3}};
  const uint32_t keys[3][2] = {{0, 0}, {~0u, ~0u}, {0xA4093822, 0x299F31D0}};
  std::vector<Tensor> inputs;
  for (size_t w = 0; w < 4; ++w) {
    inputs.push_back(Tensor::of<uint32_t>({3}, {counters[0][w], counters[1][w], counters[2][w]}));
  }
  for (size_t w = 0; w < 2; ++w) {
    inputs.push_back(Tensor::of<uint32_t>({3}, {keys[0][w], keys[1][w], keys[2][w]}));
  }
  const std::vector<Tensor> out = interpret(g, inputs);
  for (size_t lane = 0; lane < 3; ++lane) {
    const auto expected =
        philox4x32({counters[lane][0], counters[lane][1], counters[lane][2], counters[lane][3]},
                   {keys[lane][0], keys[lane][1]});
    for (size_t w = 0; w < 4; ++w) EXPECT_EQ(out[w].span<uint32_t>()[lane], expected[w]);
  }
}

}  // namespace
}  // namespace graft
