// Composites together, as a layer of a model has them, inside a scan over layers.

#include <gmock/gmock.h>

#include "ir/scan.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/dropout.h"
#include "ops/helpers.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace graft::testing {
namespace {

constexpr int64_t kLayers = 3, kTokens = 5, kWidth = 4, kRank = 2;

// x, targets, then for each layer: norm, W, A, B.
std::vector<Tensor> model_inputs(DType dtype) {
  std::vector<Tensor> in{random_tensor({1, kTokens, kWidth}, 1, 1, dtype),
                         Tensor::of<int32_t>({kTokens}, {1, 0, -100, 2, 3})};
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    in.push_back(random_tensor({kWidth}, 10 * layer + 2, 1, dtype));
    in.push_back(random_tensor({kWidth, kWidth}, 10 * layer + 3, 1, dtype));
    in.push_back(random_tensor({kRank, kWidth}, 10 * layer + 4, 1, dtype));
    in.push_back(random_tensor({kWidth, kRank}, 10 * layer + 5, 1, dtype));
  }
  return in;
}

// A pre-norm block: attention of two heads on rotated queries, its projection adapted, and a gate.
Value block(Value x, Value norm, Value weight, Value a, Value b) {
  Graph& g = x.graph();
  const DType dtype = x.dtype();
  const Value h = rms_norm(x, norm, {.eps = 1e-3});
  const DropoutCounters counters{literal(g, Tensor::of<uint32_t>({2}, {1, 2})),
                                 scalar(g, 0, DType::kU32), scalar(g, 3, DType::kU32),
                                 scalar(g, 5, DType::kU32)};
  const LoraOperands lora{a, b, scalar(g, 0.5, dtype), dropout(h, 0.25, counters)};
  const Value heads = reshape(linear(h, weight, {}, &lora), {1, kTokens, 2, kWidth / 2});
  const Value segments = splat(g, 1, {DType::kS32, {1, kTokens}});
  const Value positions = iota(g, {DType::kS32, {1, kTokens}}, 1);
  const Value q = rope(heads, rope_table(positions, splat(g, 0.3, {dtype, {1}}), 1));
  const Value out =
      attention(q, heads, heads,
                {segments, segments, scalar(g, 3, DType::kS32), scalar(g, 0, DType::kS32)},
                {.scale = 0.7})
          .out;
  const Value mixed = reshape(out, {1, kTokens, kWidth});
  return x + gated_activation(mixed, h, "silu");
}

Value loss_of(Graph& g, const std::vector<Value>& in, Value x) {
  const Value head = splat(g, 0.5, {x.dtype(), {4, kWidth}}) * iota(g, {x.dtype(), {4, kWidth}}, 0);
  return cross_entropy(reshape(x, {kTokens, kWidth}), head, in[1],
                       splat(g, 0.25, {x.dtype(), {kTokens}}))
      .loss;
}

std::vector<Value> scanned(Graph& g, const std::vector<Value>& in) {
  std::vector<std::vector<Value>> lists(4);
  for (size_t i = 2; i < in.size(); ++i) lists[(i - 2) % 4].push_back(in[i]);
  const ScanResults layers =
      scan(g, kLayers, {.carries = {in[0]}, .lists = lists}, [](ScanBody& body) {
        body.carry_out(0, block(body.carry(0), body.element(0), body.element(1), body.element(2),
                                body.element(3)));
      });
  return {loss_of(g, in, layers.carries[0])};
}

std::vector<Value> unrolled(Graph& g, const std::vector<Value>& in) {
  Value x = in[0];
  for (size_t i = 2; i < in.size(); i += 4) x = block(x, in[i], in[i + 1], in[i + 2], in[i + 3]);
  return {loss_of(g, in, x)};
}

TEST(Layer, GradientsThroughAScanOfComposites) {
  for (const Remat remat : {Remat::kNone, Remat::kMinimal, Remat::kFull}) {
    SCOPED_TRACE(remat_name(remat));
    std::vector<CheckedInput> inputs;
    for (const Tensor& tensor : model_inputs(DType::kF64)) {
      inputs.push_back({.type = {tensor.dtype(), tensor.shape()}, .value = tensor});
    }
    check_gradients(inputs, scanned, {.tolerance = 1e-7, .autodiff = {.remat = remat}});
  }
}

// The same bits, scanned or unrolled, whatever is computed again.
TEST(Layer, RematerialisationAndUnrollingChangeNoBit) {
  const std::vector<Tensor> in = model_inputs(DType::kF32);
  const auto trained = [&](const Build& model, Remat remat) {
    return evaluate(in, [&](Graph& g, const std::vector<Value>& v) {
      std::vector<Value> adapters;
      for (size_t i = 2; i < v.size(); i += 4)
        adapters.insert(adapters.end(), {v[i + 2], v[i + 3]});
      const Value loss = model(g, v)[0];
      std::vector<Value> results = gradients(loss, adapters, {.remat = remat});
      results.push_back(loss);
      return results;
    });
  };
  const std::vector<Tensor> expected = trained(unrolled, Remat::kNone);
  for (const Remat remat : {Remat::kNone, Remat::kMinimal, Remat::kFull}) {
    const std::vector<Tensor> actual = trained(scanned, remat);
    for (size_t i = 0; i < expected.size(); ++i) {
      expect_same_bytes(actual[i], expected[i], remat_name(remat));
    }
  }
}

// The frozen weights of a scan of layers cost no product: dA, dB and no dW stand in the backward
// body.
TEST(Layer, FrozenWeightsCostNothing) {
  const auto products = [](bool train_weights) {
    const auto graph =
        build_graph(model_inputs(DType::kF32), [&](Graph& g, const std::vector<Value>& v) {
          std::vector<Value> wrt;
          for (size_t i = 2; i < v.size(); i += 4) {
            wrt.insert(wrt.end(), {v[i + 2], v[i + 3]});
            if (train_weights) wrt.push_back(v[i + 1]);
          }
          return gradients(scanned(g, v)[0], wrt);
        });
    return count_ops(*eliminate_dead_code(*graph), kDotGeneral);
  };
  EXPECT_EQ(products(false), 2);
  EXPECT_EQ(products(true), 3);
}

}  // namespace
}  // namespace graft::testing
