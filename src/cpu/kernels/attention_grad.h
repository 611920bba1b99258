#pragma once
// The kernel of kAttentionGrad; listed in the table beside kAttention's.

#include "cpu/kernel.h"

namespace graft::cpu {

void run_attention_grad(const KernelCall& call);
size_t attention_grad_scratch(const Node& node, std::span<const Type> in, std::span<const Type> out,
                              int threads);

}  // namespace graft::cpu
