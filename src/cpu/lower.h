#pragma once
// The last rewriting before planning: a graph of operations that all have native kernels.
//
// A composite without a kernel for its types is replaced by its decomposition, recursively; a splat
// of many elements becomes the broadcast of a scalar one, which elementwise kernels read without
// its being spread. What is left without a kernel is refused by name.

#include <memory>

#include "ir/graph.h"

namespace graft::cpu {

std::unique_ptr<Graph> lower(const Graph& graph);

// The result is the operand's bytes under another shape: reshape, a broadcast that repeats nothing,
// a transpose that only moves axes of extent 1, a slice or padding of nothing. Such nodes cost no
// kernel.
bool is_view(const Graph& graph, const Node& node);

// Elementwise primitives: their kernels take an operand of one element for any shape.
bool is_elementwise(const Op* op);

// The value that a kernel reads for operand i of a node: for an elementwise operation the single
// element itself where the operand is a broadcast of one.
ValueId kernel_operand(const Graph& graph, const Node& node, size_t i);

}  // namespace graft::cpu
