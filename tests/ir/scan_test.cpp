// Scans against their unrolled form, and their gradients against finite differences, for every role
// that an operand or result can have and every rematerialisation policy.

#include "ir/scan.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "ir/autodiff.h"
#include "ir/interpreter.h"
#include "ir/passes.h"
#include "ir/primitives.h"
#include "support/gradient_check.h"

namespace graft {
namespace {

constexpr InterpreterOptions kExact{.precision = InterpreterOptions::kF64};

// A scalar made of every kind of operand: a carry that mixes with an invariant, a stack and a list,
// whose body also returns a stack and a list.
Value everything(Graph& g, const std::vector<Value>& in, bool reverse) {
  const Value carry = in[0], invariant = in[1], stacked = in[2];
  const std::vector<Value> list(in.begin() + 3, in.end());
  const ScanResults r = scan(
      g, 4, {.carries = {carry}, .invariants = {invariant}, .stacked = {stacked}, .lists = {list}},
      [](ScanBody& body) {
        const Value mixed = tanh(body.carry(0) * body.element(0) + body.invariant(0));
        const Value wave = sin(mixed * body.stacked(0));
        body.carry_out(0, mixed + wave);
        body.stacked_out(exp(wave) * body.invariant(0));
        body.list_out(mixed * mixed);
      },
      reverse);
  Value total = reduce_sum(r.carries[0], {0}) + reduce_sum(r.stacked[0] * 0.5, {0, 1});
  // One element of the list result is left without a reader.
  for (int i = 0; i < 3; ++i) {
    total = total + reduce_sum(r.lists[0][static_cast<size_t>(i)] * (i + 1.0), {0});
  }
  return total;
}

std::vector<testing::CheckedInput> input_types() {
  std::vector<testing::CheckedInput> types(7, {.type = {DType::kF32, {3}}});
  types[2].type.shape = {4, 3};
  return types;
}

std::vector<Value> add_inputs(Graph& g) {
  std::vector<Value> inputs;
  for (const auto& input : input_types()) {
    inputs.push_back(g.input("x" + std::to_string(inputs.size()), input.type));
  }
  return inputs;
}

std::vector<Tensor> input_values() {
  std::vector<Tensor> inputs;
  for (const auto& input : input_types()) {
    Philox random(11, static_cast<uint32_t>(inputs.size()));
    Tensor t = Tensor::empty(DType::kF64, input.type.shape);
    for (int64_t i = 0; i < t.elements(); ++i) t.data<double>()[i] = random.normal() * 0.5;
    inputs.push_back(t);
  }
  return inputs;
}

std::vector<double> values(const std::vector<Tensor>& tensors) {
  std::vector<double> all;
  for (const Tensor& t : tensors)
    all.insert(all.end(), t.data<double>(), t.data<double>() + t.elements());
  return all;
}

class ScanTest : public ::testing::TestWithParam<std::tuple<bool, Remat>> {};

TEST_P(ScanTest, GradientsOfEveryRoleAgreeWithFiniteDifferences) {
  const auto [reverse, remat] = GetParam();
  testing::GradientCheckOptions options;
  options.autodiff.remat = remat;
  testing::check_gradients(
      input_types(),
      [reverse = reverse](Graph& g, const std::vector<Value>& in) -> std::vector<Value> {
        return {everything(g, in, reverse)};
      },
      options);
}

TEST_P(ScanTest, UnrolledGraphGivesTheSameBits) {
  const auto [reverse, remat] = GetParam();
  Graph g;
  const std::vector<Value> inputs = add_inputs(g);
  const Value y = everything(g, inputs, reverse);
  g.output("y", y);
  for (Value v : gradients(y, inputs, {.remat = remat})) g.output("gradient", v);
  const auto clean = eliminate_dead_code(*merge_common_subexpressions(g));
  const auto unrolled = unroll_scans(*clean);
  for (const Graph* graph : {clean.get(), unrolled.get()}) verify(*graph);
  for (const Node& node : unrolled->nodes()) EXPECT_NE(node.op, &kScan);
  const std::vector<Tensor> numbers = input_values();
  const std::vector<double> expected = values(interpret(g, numbers, kExact));
  EXPECT_EQ(values(interpret(*clean, numbers, kExact)), expected);
  EXPECT_EQ(values(interpret(*unrolled, numbers, kExact)), expected);
}

INSTANTIATE_TEST_SUITE_P(All, ScanTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Remat::kNone, Remat::kMinimal,
                                                              Remat::kFull)));

int kept_stacks(Remat remat) {
  Graph g;
  const std::vector<Value> inputs = add_inputs(g);
  const Value y = everything(g, inputs, false);
  const Value wrt[] = {inputs[0]};
  g.output("gradient", gradients(y, wrt, {.remat = remat})[0]);
  const auto clean = eliminate_dead_code(g);
  for (const Node& node : clean->nodes()) {
    if (node.op == &kScan) return ScanLayout::of(node).stacked_out;
  }
  return -1;
}

TEST(ScanRemat, FullKeepsTheCarryAloneAndNoneKeepsWhatIsRead) {
  EXPECT_EQ(kept_stacks(Remat::kFull), 1);
  EXPECT_GT(kept_stacks(Remat::kNone), 2);
}

// Two operands that need no gradient must cost none.
TEST(ScanGradient, ComputesNothingForWhatIsNotAsked) {
  Graph g;
  const std::vector<Value> inputs = add_inputs(g);
  const Value y = everything(g, inputs, false);
  const Value wrt[] = {inputs[1]};
  g.output("gradient", gradients(y, wrt)[0]);
  const auto clean = eliminate_dead_code(g);
  const Node& backward = clean->nodes().back();
  ASSERT_EQ(backward.op, &kScan);
  EXPECT_EQ(ScanLayout::of(backward).lists_out, 0);
  EXPECT_EQ(ScanLayout::of(backward).stacked_out, 0);
}

TEST(DeadCode, DropsUnreadCarriesAndTheirOperands) {
  Graph g;
  const Value a = g.input("a", {DType::kF32, {2}}), b = g.input("b", {DType::kF32, {2}});
  const ScanResults r = scan(g, 3, {.carries = {a, b}}, [](ScanBody& body) {
    body.carry_out(0, body.carry(0) + body.carry(0));
    body.carry_out(1, exp(body.carry(1)) + body.carry(0));
    body.stacked_out(body.carry(1));
  });
  g.output("a", r.carries[0]);
  const auto clean = eliminate_dead_code(g);
  const ScanLayout layout = ScanLayout::of(clean->nodes().back());
  EXPECT_EQ(layout.carries, 1);
  EXPECT_EQ(layout.stacked_out, 0);
  const Tensor x = Tensor::of<double>({2}, {1, 2});
  const Tensor inputs[] = {x, x};
  EXPECT_EQ(values(interpret(*clean, inputs, kExact)), (std::vector<double>{8, 16}));
}

TEST(Scan, ErrorsNameTheRoleAndBothShapes) {
  Graph g;
  const Value a = g.input("a", {DType::kF32, {2}});
  try {
    scan(g, 3, {.carries = {a}}, [](ScanBody& body) {
      body.carry_out(0, concatenate(std::vector<Value>{body.carry(0), body.carry(0)}, 0));
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("f32[2]"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("f32[4]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace graft
