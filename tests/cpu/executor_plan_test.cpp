// What the memory plan promises: bytes that laws give by hand, nothing allocated during a run, and
// operations refused by name where there is no kernel.

#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "cpu/executor_harness.h"
#include "cpu/lower.h"
#include "ir/passes.h"
#include "ir/primitives.h"
#include "ir/scan.h"
#include "support/errors.h"

// AddressSanitizer has operators of its own, which must not be replaced in part.
#if defined(__SANITIZE_ADDRESS__)
#define GRAFT_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRAFT_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef GRAFT_COUNTS_ALLOCATIONS
#define GRAFT_COUNTS_ALLOCATIONS 1
#endif

namespace {
std::atomic<int64_t> g_allocations{0};
}

#if GRAFT_COUNTS_ALLOCATIONS

// Counted, to prove that a run makes none. Not inlined: GCC 12 takes the pair of malloc and free
// for a mismatch where it sees through them.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++g_allocations;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace graft::cpu {
namespace {

using testing::expect_executes;
using testing::random_floats;

constexpr DType kF32 = DType::kF32;
constexpr int64_t kSize = 1 << 14;
constexpr size_t kArray = kSize * sizeof(float);
constexpr size_t kSmall = 1024;  // room for scalars

size_t arena_bytes(const Graph& graph) { return compile(graph, {}).plan().arena_bytes; }

TEST(ExecutorPlan, ElementwiseChainsLieInOnePlace) {
  Graph graph;
  const Value x = graph.input("x", {kF32, {kSize}});
  Value y = x * 2.0;
  for (int i = 0; i < 20; ++i) y = tanh(reshape(y + 0.5, {2, kSize / 2}));
  graph.output("y", reshape(y, {kSize}));
  expect_executes(graph, {random_floats({kSize}, 1)});
  EXPECT_LE(arena_bytes(graph), kArray + kSmall);
}

TEST(ExecutorPlan, ScalarsAreNotSpread) {
  Graph graph;
  const Value x = graph.input("x", {kF32, {kSize}});
  graph.output("sum",
               reduce_sum(select(greater(x, splat(graph, 0.1, x.type())), x, zeros_like(x)), {0}));
  // The comparison (a quarter), what is selected, and partial sums.
  EXPECT_LE(arena_bytes(graph), kArray + kArray / 4 + kSmall);
}

TEST(ExecutorPlan, BytesOfScansDoNotGrowWithTheirLength) {
  size_t bytes[2] = {};
  for (const int64_t length : {2, 50}) {
    Graph graph;
    const Value x = graph.input("x", {kF32, {kSize}});
    const auto results = scan(graph, length, {.carries = {x}}, [](ScanBody& body) {
      const Value y =
          body.carry(0) +
          tanh(reshape(transpose(reshape(body.carry(0), {2, kSize / 2}), {1, 0}), {kSize}));
      body.carry_out(0, y * 0.5);
    });
    graph.output("y", results.carries[0]);
    bytes[length == 50 ? 1 : 0] = arena_bytes(graph);
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_LE(bytes[1], 2 * kArray + kSmall);  // the carry and one temporary
}

TEST(ExecutorPlan, StorageOfOneScanServesTheNext) {
  Graph graph;
  const Value x = graph.input("x", {kF32, {kSize}});
  Value total = scalar(graph, 0);
  for (int i = 0; i < 5; ++i) {
    const auto results =
        scan(graph, 3, {.carries = {scalar(graph, i)}, .invariants = {x}}, [](ScanBody& body) {
          const Value y = exp(body.invariant(0) * body.carry(0));
          body.carry_out(0, reduce_max(y, {0}));
        });
    total = total + results.carries[0];
  }
  graph.output("total", total);
  expect_executes(graph, {random_floats({kSize}, 2, kF32, -0.1, 0.1)});
  EXPECT_LE(arena_bytes(graph), kArray + 2 * kSmall);
}

// Activations that the backward scan reads are counted as such.
TEST(ExecutorPlan, CountsWhatScansKeep) {
  Graph graph;
  const Value x = graph.input("x", {kF32, {kSize}});
  const auto forward = scan(graph, 4, {.carries = {x}}, [](ScanBody& body) {
    const Value y = tanh(body.carry(0));
    body.carry_out(0, y);
    body.stacked_out(y);
  });
  const auto backward = scan(
      graph, 4, {.carries = {zeros_like(x)}, .stacked = {forward.stacked[0]}},
      [](ScanBody& body) { body.carry_out(0, body.carry(0) + body.stacked(0)); }, true);
  graph.output("y", backward.carries[0]);
  const Executable executable = compile(graph, {});
  EXPECT_EQ(executable.plan().activation_bytes, 4 * kArray);
  ASSERT_FALSE(executable.plan().largest.empty());
  EXPECT_EQ(executable.plan().largest[0].bytes, 4 * kArray);
  EXPECT_THAT(executable.plan().largest[0].name, ::testing::HasSubstr("scan"));
}

TEST(ExecutorPlan, LiteralsAreOutsideTheArena) {
  Graph graph;
  const Tensor table = random_floats({kSize}, 3);
  const Value x = graph.input("x", {kF32, {kSize}});
  graph.output("y", reduce_sum(x * literal(graph, table), {0}));
  graph.output("table", literal(graph, table));
  EXPECT_EQ(compile(graph, {}).plan().constant_bytes, kArray);
  expect_executes(graph, {random_floats({kSize}, 4)}, 1e-5);
}

TEST(ExecutorPlan, RunsAllocateNothing) {
  if (!GRAFT_COUNTS_ALLOCATIONS)
    GTEST_SKIP() << "allocations are not counted under AddressSanitizer";
  Graph graph;
  const Value x = graph.input("x", {kF32, {64, 64}});
  const auto results = scan(graph, 5, {.carries = {x}}, [](ScanBody& body) {
    const Value y =
        dot_general(body.carry(0), body.carry(0), {.lhs_contract = {1}, .rhs_contract = {1}});
    const Value z = transpose(tanh(y) + reduce_max(y, {0, 1}), {1, 0});
    body.carry_out(0, concatenate(std::vector<Value>{slice(z, 0, 32, 64), slice(z, 0, 0, 32)}, 0));
    body.stacked_out(top_k(z, 2)[0]);
  });
  graph.output("y", results.carries[0], x);
  graph.output("z", results.stacked[0]);
  Executable executable = compile(graph, {.threads = 2});
  Arena arena;
  executable.bind("x", random_floats({64, 64}, 5).clone());
  executable.run(arena);
  const int64_t before = g_allocations;
  executable.run(arena);
  EXPECT_EQ(g_allocations - before, 0);
}

// Autodiff puts the gradients of weights last; made there they would hold on to the carry, which
// then would have to be copied in each iteration.
TEST(ExecutorPlan, WeightGradientsAreMadeAtOnce) {
  Graph graph;
  const Value d = graph.input("d", {kF32, {64, 32}}), w = graph.input("w", {kF32, {32, 32}});
  const Value xs = graph.input("xs", {kF32, {3, 64, 32}});
  const auto results = scan(
      graph, 3, {.carries = {d}, .invariants = {w}, .stacked = {xs}},
      [](ScanBody& body) {
        const Value d = body.carry(0);
        body.carry_out(
            0, tanh(dot_general(d, body.invariant(0), {.lhs_contract = {1}, .rhs_contract = {0}})));
        const Value dw =
            dot_general(d, body.stacked(0), {.lhs_contract = {0}, .rhs_contract = {0}});
        body.list_out(dw * 0.5);
      },
      true);
  graph.output("d", results.carries[0]);
  for (Value v : results.lists[0]) graph.output("dw", v);
  const std::vector<Tensor> inputs = {random_floats({64, 32}, 7), random_floats({32, 32}, 8),
                                      random_floats({3, 64, 32}, 9)};
  expect_executes(graph, inputs, 1e-5);
  Executable executable = compile(graph, {});
  testing::run_guarded(executable, inputs);
  for (const auto& time : executable.profile()) {
    EXPECT_TRUE(time.op != "copy" || time.calls == 2)
        << time.calls << " copies; the first carry needs 2";
  }
}

// A composite without a native kernel: it runs as its decomposition, here through another of them.
std::vector<Type> infer_same(const Call& call) { return {call.operands[0]}; }
const Op kDouble{.name = "double",
                 .infer = infer_same,
                 .decompose = [](Graph&, std::span<const Value> x, const Call&) {
                   return std::vector<Value>{x[0] + x[0]};
                 }};
const Op kQuadruple{
    .name = "quadruple",
    .infer = infer_same,
    .decompose = [](Graph& graph, std::span<const Value> x, const Call&) {
      const Value once = graph.add1(kDouble, {x[0]});
      return std::vector<Value>{scan(graph, 1, {.carries = {once}}, [](ScanBody& body) {
                                  body.carry_out(0, body.graph().add1(kDouble, {body.carry(0)}));
                                }).carries[0]};
    }};

TEST(ExecutorPlan, CompositesWithoutKernelsAreDecomposed) {
  Graph graph;
  const Value x = graph.input("x", {kF32, {5}});
  const auto results = scan(graph, 2, {.carries = {x}}, [](ScanBody& body) {
    body.carry_out(0, body.graph().add1(kQuadruple, {body.carry(0)}));
  });
  graph.output("y", results.carries[0]);
  const Tensor input = random_floats({5}, 6);
  expect_executes(graph, {input});
  for (const Op* op : operations(*lower(graph))) EXPECT_TRUE(op->primitive) << op->name;
}

TEST(ExecutorPlan, RefusesByNameWhatHasNoKernel) {
  Graph graph;
  const Value x = graph.input("x", {DType::kF8E4M3FN, {5}});
  const auto scope = graph.scope("layers");
  graph.output("y", x + x);
  const std::string error = graft::testing::error_of([&] { compile(graph, {}); });
  EXPECT_THAT(error, ::testing::HasSubstr("add has no native kernel for f8e4m3fn[5]"));
  EXPECT_THAT(error, ::testing::HasSubstr("layers"));
}

TEST(ExecutorPlan, BindsByNameAndChecksTypes) {
  Graph graph;
  const Value x = graph.input("x", {kF32, {2}});
  graph.output("y", x * 2.0);
  Executable executable = compile(graph, {});
  Arena arena;
  EXPECT_THROW(executable.run(arena), std::logic_error);
  EXPECT_THROW(executable.bind("z", Tensor::zeros(kF32, {2})), std::logic_error);
  EXPECT_THROW(executable.bind("x", Tensor::zeros(kF32, {3})), std::logic_error);
  EXPECT_THROW(executable.output("y"), std::logic_error);
  // Bytes that are not aligned, as a mapped file may hold them.
  std::vector<std::byte> bytes(9);
  const float values[] = {1.5F, -2};
  std::memcpy(bytes.data() + 1, values, sizeof values);
  executable.bind("x", Tensor::borrow(kF32, {2}, bytes.data() + 1, nullptr));
  executable.run(arena);
  EXPECT_EQ(executable.output("y").data<float>()[0], 3);
  EXPECT_EQ(executable.output("y").data<float>()[1], -4);
  EXPECT_THAT(executable.to_string(), ::testing::HasSubstr("mul("));
}

}  // namespace
}  // namespace graft::cpu
