// Laws that hold for any graph, tried on random ones: passes keep values and types, printing is
// stable, and the gradient agrees with finite differences.

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/random.h"
#include "ir/passes.h"
#include "ir/primitives.h"
#include "ir/scan.h"
#include "support/gradient_check.h"

namespace graft {
namespace {

using Values = std::vector<Value>;

// Adds random primitives over a growing pool of values: floats of a few shapes, and bools made on
// the way.
class RandomBuilder {
 public:
  RandomBuilder(Graph& graph, Philox& random, Values pool, bool smooth)
      : graph_(graph), random_(random), pool_(std::move(pool)), smooth_(smooth) {}

  void grow(int nodes) {
    for (int i = 0; i < nodes; ++i) pool_.push_back(next());
  }
  const Values& pool() const { return pool_; }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_.below(static_cast<uint64_t>(n))); }
  Value any() { return pool_[static_cast<size_t>(below(static_cast<int64_t>(pool_.size())))]; }

  // Some value in the shape of x: another of it, a scalar stretched, or x itself.
  Value partner(Value x) {
    Values same;
    for (Value v : pool_) {
      if (v.shape() == x.shape() || v.rank() == 0) same.push_back(v);
    }
    return same.empty() ? x : same[static_cast<size_t>(below(static_cast<int64_t>(same.size())))];
  }

  Value next() {
    const Value x = any();
    switch (below(smooth_ ? 4 : 5)) {
      case 0: return elementwise(x);
      case 1: return binary(x, partner(x));
      case 2: return shaped(x);
      case 3: return structured(x);
      default: return piecewise(x, partner(x));
    }
  }

  Value elementwise(Value x) {
    switch (below(6)) {
      case 0: return tanh(x);
      case 1: return sin(x);
      case 2: return logistic(x);
      case 3: return -x;
      case 4: return exp(tanh(x));
      default: return sqrt(x * x + 1);
    }
  }

  Value binary(Value a, Value b) {
    switch (below(4)) {
      case 0: return a + b;
      case 1: return a - b;
      case 2: return tanh(a * b);
      default: return a / (1.5 + cos(b));
    }
  }

  Value piecewise(Value a, Value b) {
    switch (below(4)) {
      case 0: return maximum(a, b);
      case 1: return select(less(a, b), a, b * 2);
      case 2: return abs(a);
      default: return a.rank() == 0 ? floor(a) : top_k(a, 1)[0];
    }
  }

  Value shaped(Value x) {
    if (x.rank() == 0) return broadcast_to(x, {2, 3});
    const int axis = static_cast<int>(below(x.rank()));
    const int64_t extent = x.dim(axis);
    switch (below(5)) {
      case 0: return reshape(x, {x.type().elements()});
      case 1: return slice(x, axis, below(extent), extent);
      case 2: return extent < 6 ? concatenate(Values{x, partner_of_shape(x)}, axis) : x * 0.5;
      case 3: return extent < 6 ? pad(x, axis, 1, 0, 0.25) : slice(x, axis, 0, 2);
      default: {
        std::vector<int64_t> reversed;
        for (int64_t i = x.rank(); i-- > 0;) reversed.push_back(i);
        return transpose(x, reversed);
      }
    }
  }

  Value partner_of_shape(Value x) {
    const Value other = partner(x);
    return other.shape() == x.shape() ? other : broadcast_to(other, Shape(x.shape()));
  }

  Value structured(Value x) {
    if (x.rank() == 0) return x * x;
    const int64_t axis = below(x.rank());
    switch (below(4)) {
      case 0: return reduce_sum(x, {axis}) * 0.5;
      case 1: {
        const DotDimensions dimensions{.lhs_contract = {axis}, .rhs_contract = {axis}};
        const Value product = dot_general(x, partner_of_shape(x), dimensions);
        return product.type().elements() <= 64 ? tanh(product) : reduce_sum(product, {0});
      }
      case 2: {
        const std::vector<int32_t> rows = {static_cast<int32_t>(below(x.dim(0))), 0};
        return gather(x, literal(graph_, Tensor::of<int32_t>({2}, rows)));
      }
      default:
        return scan(
                   graph_, x.dim(0), {.carries = {scalar(graph_, 0.5)}, .stacked = {x}},
                   [](ScanBody& body) {
                     const Value y = tanh(body.stacked(0) * body.carry(0));
                     std::vector<int64_t> axes;
                     for (int64_t i = 0; i < y.rank(); ++i) axes.push_back(i);
                     body.carry_out(0, tanh(body.carry(0) + reduce_sum(y, axes)));
                     body.stacked_out(y + y);
                     body.stacked_out(exp(y));  // nobody reads it
                   },
                   below(2) == 0)
            .stacked[0];
    }
  }

  Graph& graph_;
  Philox& random_;
  Values pool_;
  bool smooth_;
};

const std::vector<Shape> kInputShapes = {{2, 3}, {3}, {}};

// The last values of a random graph over inputs of kInputShapes.
Values build(Graph& graph, const Values& inputs, uint64_t seed, bool smooth) {
  Philox random(seed, fnv1a_32("random graph"));
  RandomBuilder builder(graph, random, inputs, smooth);
  builder.grow(12);
  return {builder.pool().end() - 3, builder.pool().end()};
}

struct Sample {
  Graph graph;
  std::vector<Tensor> inputs;

  explicit Sample(uint64_t seed) {
    Values values;
    for (const Shape& shape : kInputShapes) {
      values.push_back(graph.input("x" + std::to_string(values.size()), {DType::kF32, shape}));
      Philox random(seed, static_cast<uint32_t>(values.size()));
      inputs.push_back(testing::internal::random_tensor(shape, -1, 1, random).as(DType::kF32));
    }
    for (Value v : build(graph, values, seed, false)) graph.output("y", v);
  }
};

void expect_same_bytes(const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                       const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].shape(), b[i].shape()) << what;
    EXPECT_EQ(std::memcmp(a[i].bytes(), b[i].bytes(), a[i].size_bytes()), 0)
        << what << ", output " << i;
  }
}

TEST(RandomGraph, PassesKeepEveryBit) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Sample sample(seed);
    verify(sample.graph);
    const std::vector<Tensor> expected = interpret(sample.graph, sample.inputs);
    const auto check = [&](const std::unique_ptr<Graph>& changed, const std::string& what) {
      verify(*changed);
      expect_same_bytes(interpret(*changed, sample.inputs), expected, what);
    };
    check(copy(sample.graph), "copy");
    check(eliminate_dead_code(sample.graph), "dead code");
    check(merge_common_subexpressions(sample.graph), "common subexpressions");
    check(decompose(sample.graph), "decompose");
    check(unroll_scans(sample.graph), "unroll");
    check(merge_common_subexpressions(*eliminate_dead_code(*unroll_scans(sample.graph))), "all");
    if (HasFatalFailure()) return;
  }
}

TEST(RandomGraph, PassesDoTheirWork) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Sample sample(seed);
    // What is left is needed by an output, and a second time there is nothing to drop or merge.
    const auto live = eliminate_dead_code(sample.graph);
    std::set<ValueId> read;
    for (const Output& output : live->outputs()) read.insert(output.value);
    for (const Node& node : live->nodes()) read.insert(node.operands.begin(), node.operands.end());
    for (const Node& node : live->nodes()) {
      EXPECT_TRUE(std::any_of(node.results.begin(), node.results.end(),
                              [&](ValueId id) { return read.contains(id); }))
          << node.op->name << " has no reader";
    }
    EXPECT_EQ(to_string(*eliminate_dead_code(*live)), to_string(*live));
    const auto merged = merge_common_subexpressions(*live);
    EXPECT_EQ(to_string(*merge_common_subexpressions(*merged)), to_string(*merged));
    for (const Op* op : operations(*unroll_scans(sample.graph))) EXPECT_NE(op, &kScan);
  }
}

TEST(RandomGraph, PrintingIsStable) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Sample a(seed), b(seed);
    EXPECT_EQ(to_string(a.graph), to_string(b.graph));
    EXPECT_EQ(to_string(*copy(a.graph)), to_string(*copy(*copy(a.graph))));
  }
  EXPECT_NE(to_string(Sample(1).graph), to_string(Sample(2).graph));
}

TEST(RandomGraph, GradientsAgreeWithDifferences) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<testing::CheckedInput> inputs;
    for (const Shape& shape : kInputShapes) inputs.push_back({.type = {DType::kF32, shape}});
    const Remat remat = seed % 3 == 0   ? Remat::kNone
                        : seed % 3 == 1 ? Remat::kMinimal
                                        : Remat::kFull;
    testing::check_gradients(
        inputs, [&](Graph& graph, const Values& in) { return build(graph, in, seed, true); },
        {.seed = seed, .autodiff = {.remat = remat}});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace graft
