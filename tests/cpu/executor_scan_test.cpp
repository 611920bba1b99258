// Scans, cases and donated state on the native executor: values against the interpreter, and the
// copies and bytes that the plan spares.

#include <functional>

#include "cpu/executor_harness.h"
#include "ir/primitives.h"
#include "ir/scan.h"

namespace graft::cpu {
namespace {

using testing::execute;
using testing::expect_executes;
using testing::random_floats;
using testing::run_guarded;
using testing::same_bytes;

constexpr DType kF32 = DType::kF32;

std::vector<Tensor> floats(const std::vector<Shape>& shapes) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : shapes) {
    tensors.push_back(random_floats(shape, static_cast<uint32_t>(tensors.size())));
  }
  return tensors;
}

std::vector<Value> inputs_of(Graph& graph, const std::vector<Tensor>& tensors) {
  std::vector<Value> values;
  for (const Tensor& t : tensors) {
    values.push_back(graph.input("in" + std::to_string(values.size()), {t.dtype(), t.shape()}));
  }
  return values;
}

// How often an operation is called in a run of the program.
int64_t calls(const Executable& executable, std::string_view op) {
  for (const auto& time : executable.profile()) {
    if (time.op == op) return time.calls;
  }
  return 0;
}

int64_t copies_in_a_run(const Graph& graph, const std::vector<Tensor>& inputs) {
  Executable executable = compile(graph, {});
  run_guarded(executable, inputs);
  return calls(executable, "copy") / 2;  // it runs twice
}

TEST(ExecutorScan, EveryRole) {
  for (const bool reverse : {false, true}) {
    const auto tensors = floats({{3}, {3}, {4, 3}, {3}, {3}, {3}, {3}});
    Graph graph;
    const auto in = inputs_of(graph, tensors);
    const ScanResults results = scan(
        graph, 4,
        {.carries = {in[0]},
         .invariants = {in[1]},
         .stacked = {in[2]},
         .lists = {{in[3], in[4], in[5], in[6]}}},
        [](ScanBody& body) {
          const Value y = tanh(body.carry(0) * body.invariant(0) + body.stacked(0));
          body.carry_out(0, y - body.element(0));
          body.stacked_out(y * 2.0);
          body.stacked_out(body.carry(0));    // what was found, before it is overwritten
          body.stacked_out(body.element(0));  // not made here
          body.list_out(y + body.element(0));
          body.list_out(body.invariant(0));
        },
        reverse);
    for (Value v : results.carries) graph.output("carry", v);
    for (Value v : results.stacked) graph.output("stacked", v);
    for (const auto& list : results.lists) {
      for (Value v : list) graph.output("element", v);
    }
    expect_executes(graph, tensors);
  }
}

// Carries that take each other's places: a copy too early would lose one.
TEST(ExecutorScan, PermutedCarries) {
  const auto tensors = floats({{5}, {5}, {5}, {5}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const ScanResults results =
      scan(graph, 5, {.carries = {in[0], in[1], in[2], in[3]}}, [](ScanBody& body) {
        body.carry_out(0, body.carry(1));
        body.carry_out(1, body.carry(2));
        body.carry_out(2, body.carry(0));
        body.carry_out(3, body.carry(3) + body.carry(0));
      });
  for (Value v : results.carries) graph.output("carry", v);
  expect_executes(graph, tensors);
}

// One value for several carries and slots; carries that stay; one input for two carries.
TEST(ExecutorScan, SharedValues) {
  const auto tensors = floats({{5}, {5}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const ScanResults results =
      scan(graph, 3, {.carries = {in[0], in[0], in[1], in[1]}, .invariants = {in[1]}},
           [](ScanBody& body) {
             const Value y = body.carry(0) + body.carry(1) * body.carry(2);
             body.carry_out(0, y);
             body.carry_out(1, y);
             body.carry_out(2, body.carry(2));
             body.carry_out(3, body.invariant(0));
             body.stacked_out(y);
             body.stacked_out(y);
             body.stacked_out(reshape(tanh(y), {1, 5}));
             body.list_out(y);
           });
  for (Value v : results.carries) graph.output("carry", v);
  for (Value v : results.stacked) graph.output("stacked", v);
  for (Value v : results.lists[0]) graph.output("element", v);
  expect_executes(graph, tensors);
}

// An initial carry that is read again later must not be run over.
TEST(ExecutorScan, InitialCarryStaysWhereItIsReadLater) {
  const auto tensors = floats({{6}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const Value start = in[0] * 3.0;
  const auto body = [](ScanBody& b) { b.carry_out(0, b.carry(0) * b.carry(0)); };
  const Value once = scan(graph, 2, {.carries = {start}}, body).carries[0];
  const Value with_invariant =
      scan(graph, 2, {.carries = {start}, .invariants = {start}}, [](ScanBody& b) {
        b.carry_out(0, b.carry(0) + b.invariant(0));
      }).carries[0];
  graph.output("once", once + start);
  graph.output("with invariant", with_invariant);
  expect_executes(graph, tensors);
}

TEST(ExecutorScan, Nested) {
  const auto tensors = floats({{4}, {3, 2, 4}, {2, 4}, {2, 4}, {2, 4}, {4}, {4}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const ScanResults results = scan(
      graph, 3,
      {.carries = {in[0]},
       .invariants = {in[5], in[6]},
       .stacked = {in[1]},
       .lists = {{in[2], in[3], in[4]}}},
      [](ScanBody& outer) {
        // Slices of a slice, slices of an element, a list of what is outside, a carry through both.
        const ScanResults inner = scan(outer.graph(), 2,
                                       {.carries = {outer.carry(0)},
                                        .invariants = {outer.invariant(0)},
                                        .stacked = {outer.stacked(0), outer.element(0)},
                                        .lists = {{outer.invariant(0), outer.invariant(1)}}},
                                       [](ScanBody& body) {
                                         const Value y =
                                             body.carry(0) * body.invariant(0) + body.stacked(0);
                                         body.carry_out(0, tanh(y + body.stacked(1)));
                                         body.stacked_out(y * body.element(0));
                                         body.list_out(exp(y));
                                       });
        outer.carry_out(0, inner.carries[0] + inner.lists[0][1]);
        outer.stacked_out(inner.stacked[0]);
        outer.stacked_out(inner.lists[0][0]);
        outer.list_out(inner.stacked[0] * 2.0);
        outer.list_out(inner.lists[0][1]);
      },
      true);
  graph.output("carry", results.carries[0]);
  for (Value v : results.stacked) graph.output("stacked", v);
  for (const auto& list : results.lists) {
    for (Value v : list) graph.output("element", v);
  }
  expect_executes(graph, tensors);
}

// The gradients of micro-batches are added up where they are.
TEST(ExecutorScan, AccumulatorsAreAddedToInPlace) {
  constexpr int64_t kSize = 1 << 16;
  const auto tensors = floats({{8, kSize}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const Value zero = splat(graph, 0, {kF32, {kSize}});
  const ScanResults results =
      scan(graph, 8, {.carries = {zero}, .stacked = {in[0]}},
           [](ScanBody& body) { body.carry_out(0, body.carry(0) + body.stacked(0)); });
  graph.output("sum", results.carries[0]);
  expect_executes(graph, tensors);
  EXPECT_EQ(copies_in_a_run(graph, tensors), 0);
  // The accumulator, and the zero that it begins with.
  EXPECT_LE(compile(graph, {}).plan().arena_bytes, kSize * sizeof(float) + 64);
}

TEST(ExecutorScan, SlotsAreWrittenWithoutCopies) {
  const auto tensors = floats({{4, 6}, {6}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const ScanResults results =
      scan(graph, 4, {.invariants = {in[1]}, .stacked = {in[0]}}, [](ScanBody& body) {
        const Value y = exp(body.stacked(0));
        body.stacked_out(y);
        body.list_out(reshape(y * body.invariant(0), {2, 3}));
      });
  graph.output("stacked", results.stacked[0]);
  for (Value v : results.lists[0]) graph.output("element", v);
  expect_executes(graph, tensors);
  EXPECT_EQ(copies_in_a_run(graph, tensors), 0);
}

TEST(ExecutorDonation, StateIsUpdatedInPlace) {
  const auto tensors = floats({{1000}, {1000}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  graph.output("p", in[0] * 0.9 + in[1], in[0]);
  expect_executes(graph, tensors);
  EXPECT_EQ(copies_in_a_run(graph, tensors), 0);
  EXPECT_LE(compile(graph, {}).plan().arena_bytes, 256U);  // the scalar alone
}

TEST(ExecutorDonation, OldValueIsReadAfterTheNewOneIsMade) {
  const auto tensors = floats({{1000}, {1000}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const Value updated = in[0] + in[1];
  graph.output("p", updated, in[0]);
  graph.output("change", exp(updated) - in[0]);
  graph.output("old", in[0]);
  expect_executes(graph, tensors);
}

TEST(ExecutorDonation, ExchangedInputs) {
  const auto tensors = floats({{7}, {7}, {7}, {7}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  graph.output("a", in[1], in[0]);
  graph.output("b", in[0], in[1]);
  graph.output("c", in[2], in[2]);
  graph.output("d", in[2] + in[0], in[3]);
  graph.output("d again", in[2] + in[0]);
  expect_executes(graph, tensors);
}

// Views of an input that is overwritten are views of the old value.
TEST(ExecutorDonation, ViewsKeepTheOldValue) {
  const auto tensors = floats({{2, 3}, {6}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const Value flat = reshape(in[0], {6});
  const Value sum = flat + in[1];
  graph.output("p", reshape(sum, {2, 3}), in[0]);
  graph.output("later", flat * sum);
  graph.output("view", reshape(flat, {3, 2}));
  expect_executes(graph, tensors);
}

// Caches of decoding: a list or stack of donated state, each element updated in its own iteration.
TEST(ExecutorDonation, CachesOfLayersAreUpdatedInPlace) {
  const Tensor position = Tensor::of<int32_t>({}, {3});
  std::vector<Tensor> tensors = floats({{8, 4}, {8, 4}, {8, 4}, {1, 4}, {3, 8, 4}});
  tensors.push_back(position);
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const ScanResults results =
      scan(graph, 3,
           {.carries = {in[3]},
            .invariants = {in[5]},
            .stacked = {in[4]},
            .lists = {{in[0], in[1], in[2]}}},
           [](ScanBody& body) {
             const Value starts[] = {body.invariant(0), scalar(body.graph(), 0, DType::kS32)};
             const Value keys = dynamic_update_slice(body.element(0), body.carry(0), starts);
             const Value values = dynamic_update_slice(body.stacked(0), body.carry(0), starts);
             body.carry_out(0, tanh(reshape(reduce_sum(keys * values, {0}), {1, 4})));
             body.stacked_out(values);
             body.list_out(keys);
           });
  for (size_t i = 0; i < 3; ++i) graph.output("keys", results.lists[0][i], in[i]);
  graph.output("values", results.stacked[0], in[4]);
  graph.output("x", results.carries[0]);
  expect_executes(graph, tensors);
  EXPECT_LE(copies_in_a_run(graph, tensors), 4);  // the carry alone
}

// The same where a later reader needs the old list: no taking over.
TEST(ExecutorDonation, OldListIsReadLater) {
  const auto tensors = floats({{6}, {6}, {6}, {2, 6}});
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const Value first = in[0] * 2.0, second = in[1] * 2.0, stack = exp(in[3]);
  const ScanResults results =
      scan(graph, 2, {.stacked = {stack}, .lists = {{first, second}}}, [](ScanBody& body) {
        body.list_out(body.element(0) + body.stacked(0));
        body.stacked_out(body.stacked(0) * 3.0);
      });
  graph.output("old", first + second);
  graph.output("old stack", stack - 1.0);
  for (Value v : results.lists[0]) graph.output("new", v);
  graph.output("new stack", results.stacked[0]);
  // An element that stands twice in the list is read again by a later iteration.
  const ScanResults twice = scan(graph, 2, {.lists = {{in[2], in[2]}}},
                                 [](ScanBody& body) { body.list_out(body.element(0) * 2.0); });
  for (Value v : twice.lists[0]) graph.output("twice", v);
  expect_executes(graph, tensors);
}

std::shared_ptr<const Graph> branch(const std::function<std::vector<Value>(Value, Value)>& build) {
  auto body = std::make_shared<Graph>();
  const Value a = body->input("a", {kF32, {5}}), b = body->input("b", {kF32, {5}});
  for (Value v : build(a, b)) body->output("out", v);
  return body;
}

TEST(ExecutorCase, TakesOneBranch) {
  for (int32_t index : {-3, 0, 1, 2, 9}) {
    std::vector<Tensor> tensors = floats({{5}, {5}});
    tensors.push_back(Tensor::of<int32_t>({}, {index}));
    Graph graph;
    const auto in = inputs_of(graph, tensors);
    const Value a = in[0] * 2.0, b = in[1] + 1.0;
    const Value operands[] = {a, b};
    const auto results = case_of(in[2], operands,
                                 {branch([](Value x, Value y) {
                                    const Value sum = x + y;
                                    return std::vector<Value>{sum, sum};
                                  }),
                                  branch([](Value x, Value y) {
                                    return std::vector<Value>{exp(tanh(x)), y};
                                  }),
                                  branch([](Value x, Value y) {
                                    return std::vector<Value>{y, x * 3.0};
                                  })});
    graph.output("first", results[0] - a);
    graph.output("second", results[1]);
    expect_executes(graph, tensors);
  }
}

TEST(ExecutorCase, InsideScan) {
  std::vector<Tensor> tensors = floats({{5}, {5}});
  tensors.push_back(Tensor::of<int32_t>({4}, {1, 0, 2, 1}));
  Graph graph;
  const auto in = inputs_of(graph, tensors);
  const ScanResults results =
      scan(graph, 4, {.carries = {in[0]}, .invariants = {in[1]}, .stacked = {in[2]}},
           [](ScanBody& body) {
             const Value operands[] = {body.carry(0), body.invariant(0)};
             const auto chosen =
                 case_of(body.stacked(0), operands,
                         {branch([](Value x, Value y) { return std::vector<Value>{x + y}; }),
                          branch([](Value x, Value y) { return std::vector<Value>{tanh(x * y)}; }),
                          branch([](Value x, Value) { return std::vector<Value>{x}; })});
             body.carry_out(0, chosen[0]);
             body.stacked_out(chosen[0]);
           });
  graph.output("carry", results.carries[0]);
  graph.output("stacked", results.stacked[0]);
  expect_executes(graph, tensors);
}

}  // namespace
}  // namespace graft::cpu
