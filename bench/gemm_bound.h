#pragma once
// How fast a LoRA train step could be on this machine if it consisted of nothing but the matrix
// products that it cannot avoid, each as fast as oneDNN computes it alone.
//
// Every product is timed at its real shape with its real weights, one layer after the other, so
// that no weight is found in a cache, in several ways (oneDNN's own threads, prepacked weights,
// fixed partitions); the fastest way counts. Products with the low-rank factors count at the rate
// of the base product beside which they stand: what the fused kernels could reach at best.
//
//   const GemmBound bound = measure_gemm_bound(state, shape, threads);
//   bound.seconds() / step_seconds;        // share of the bound

#include <cstdint>
#include <string>
#include <vector>

#include "bench/support.h"
#include "train/state.h"
#include "train/step.h"

namespace graft::bench {

// Products of one shape: of all layers, or the head.
struct ProductTime {
  std::string name;       // "q_proj, o_proj"
  bool gradient = false;  // dx = dy W, else y = x W^T
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t count = 0;
  int64_t rank = 0;    // of the low-rank term beside it; 0: none
  double seconds = 0;  // of all of them; median of the passes in the fastest way
  std::string way = "";

  double flops() const;  // of all of them
  double low_rank_share()
      const;  // FLOPs of the two low-rank products over those of the base product
};

struct GemmBound {
  std::vector<ProductTime> products;
  double attention_forward = 0, attention_backward = 0;  // seconds of attention's own products
  double attention_flops = 0;
  double square_rate = 0;  // FLOP/s of the best large square product
  int64_t square_size = 0;
  std::string square_way;

  // Seconds of a step by operation: what it could take at best.
  double forward() const;          // linear layers with their low-rank terms
  double input_gradients() const;  // likewise
  double factor_gradients() const;
  double head() const;
  double attention() const { return attention_forward + attention_backward; }
  double seconds() const { return seconds_without_attention() + attention(); }
  double seconds_without_attention() const;

  double all_flops() const { return flops_without_attention() + attention_flops; }
  double flops_without_attention() const;
  double rate() const { return flops_without_attention() / seconds_without_attention(); }
};

// `shape` has one micro-batch; `state` carries an adapter on every linear layer. f32. The thread's
// clock serves one thread only.
GemmBound measure_gemm_bound(const ModelState& state, const BatchShape& shape, int threads,
                             Clock clock = Clock::kWall);

}  // namespace graft::bench
