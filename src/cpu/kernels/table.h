#pragma once
// The tables from which find_kernel (cpu/kernel.h) picks: one a file of cpu/kernels, listed in
// cpu/kernel_table.cpp. The first entry of an operation whose `supports` accepts the types wins.
//
//   std::span<const KernelEntry> softmax_kernels() {
//     static constexpr KernelEntry kTable[] = {{&kSoftmax, {.run = run_softmax, .in_place = true},
//     is_f32}}; return kTable;
//   }

#include <span>

#include "cpu/kernel.h"

namespace graft::cpu {

struct KernelEntry {
  const Op* op;
  Kernel kernel;
  // Whether the kernel takes a node of these types; null: any that the shape rule admits.
  bool (*supports)(const Node& node, std::span<const Type> in, std::span<const Type> out) = nullptr;
};

// Composites.
std::span<const KernelEntry> linear_kernels();
std::span<const KernelEntry> attention_kernels();
std::span<const KernelEntry> norm_kernels();
std::span<const KernelEntry> rope_kernels();
std::span<const KernelEntry> activation_kernels();
std::span<const KernelEntry> loss_kernels();
std::span<const KernelEntry> embedding_kernels();
std::span<const KernelEntry> dropout_kernels();
std::span<const KernelEntry> optimizer_kernels();

// Primitives.
std::span<const KernelEntry> constant_kernels();  // splat, iota
std::span<const KernelEntry> unary_kernels();     // elementwise of one operand, but for convert
std::span<const KernelEntry> binary_kernels();    // arithmetic, bits and shifts
std::span<const KernelEntry> select_kernels();    // compare, select, convert
std::span<const KernelEntry>
shape_kernels();  // broadcast, transpose, slice, pad, concatenate, dynamic slices
std::span<const KernelEntry> reduce_kernels();
std::span<const KernelEntry> dot_general_kernels();
std::span<const KernelEntry> index_kernels();  // gather, scatter_add, top_k

}  // namespace graft::cpu
