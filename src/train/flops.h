#pragma once
// Floating-point operations of matrix products, counted on the graph itself: what a step cannot
// avoid, and what the machine does at its best.

#include "ir/graph.h"

namespace graft {

// Multiplications and additions of every GEMM and attention product in one run of the graph, scans
// multiplied out. Attention counts the causal half.
double gemm_flops(const Graph& graph);

// FLOP/s of a large square f32 GEMM on `threads` threads of this machine, the best of a few (a
// fraction of a second).
double measure_gemm_limit(int threads, DType dtype = DType::kF32);

}  // namespace graft
