#include "train/flops.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "cpu/gemm.h"
#include "ir/primitives.h"
#include "ir/scan.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/loss.h"

namespace graft {
namespace {

double elements(const Type& type) { return static_cast<double>(type.elements()); }

double node_flops(const Graph& graph, const Node& node) {
  const auto in = [&](size_t i) -> const Type& { return graph.type(node.operands[i]); };
  const auto out = [&](size_t i) -> const Type& { return graph.type(node.results[i]); };
  const auto last = [](const Type& t) { return static_cast<double>(t.shape.back()); };
  if (node.op == &kDotGeneral) {
    double contracted = 1;
    for (int64_t axis : node.attributes.integers("lhs_contract")) {
      contracted *= static_cast<double>(in(0).shape[static_cast<size_t>(axis)]);
    }
    return 2 * elements(out(0)) * contracted;
  }
  if (node.op == &kLinear || node.op == &kLinearInputGrad) {
    const double rows = elements(in(0)) / last(in(0));
    double flops = 2 * rows * elements(weight_type(in(1), node.attributes));
    if (node.attributes.flag("has_lora")) {
      // The factors are two of the operands behind the weight (and the bias).
      const size_t a = node.attributes.flag("has_bias") ? 3 : 2;
      flops += 2 * rows * (elements(in(a)) + elements(in(a + 1)));
    }
    return flops;
  }
  if (node.op == &kCrossEntropy || node.op == &kCrossEntropyWithGrad) {
    const double product =
        2 * static_cast<double>(in(0).shape[0]) * elements(weight_type(in(1), node.attributes));
    const double products = node.op == &kCrossEntropy             ? 1
                            : node.attributes.flag("weight_grad") ? 3
                                                                  : 2;
    return product * products;
  }
  if (node.op == &kAttention || node.op == &kAttentionGrad) {
    const bool grad = node.op == &kAttentionGrad;
    const Type& q = in(grad ? 1 : 0);
    const Type& k = in(grad ? 2 : 1);
    const Type& v = in(grad ? 3 : 2);
    const double pairs = static_cast<double>(q.shape[0] * q.shape[1] * q.shape[2] * k.shape[1]) / 2;
    // Forward: q k and p v. Backward: q k again, dv, dp, dq, dk.
    return grad ? pairs * (6 * last(q) + 4 * last(v)) : pairs * 2 * (last(q) + last(v));
  }
  return 0;
}

}  // namespace

double gemm_flops(const Graph& graph) {
  double total = 0;
  for (const Node& node : graph.nodes()) {
    total += node_flops(graph, node);
    if (node.op == &kScan) {
      total += static_cast<double>(ScanLayout::of(node).length) * gemm_flops(*node.bodies[0]);
    }
  }
  return total;
}

double measure_gemm_limit(int threads, DType dtype) {
  constexpr int64_t kSize = 1024, kBlock = 256;
  const Tensor a = Tensor::zeros(dtype, {kSize, kSize}), b = Tensor::zeros(dtype, {kSize, kSize});
  std::vector<float> c(kSize * kSize);
  const auto row_of_a = [&](int64_t row) {
    return a.bytes() + dtype_bytes(dtype, static_cast<size_t>(row * kSize));
  };
  double best = 0;
  for (int repeat = 0; repeat < 6; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t row = 0; row < kSize; row += kBlock) {
      cpu::gemm(kBlock, kSize, kSize, {row_of_a(row), dtype, kSize}, {b.bytes(), dtype, kSize},
                c.data() + row * kSize, kSize);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds.count());
  }
  return best;
}

}  // namespace graft
