#pragma once
// What this machine's vector units offer, asked once of the libraries that dispatch on it: Highway
// for graft's own loops, oneDNN for matrix products.

#include <string_view>

namespace graft::cpu {

// Limits both libraries to a set, by the names that instruction_set() (cpu/kernel.h) gives, so that
// a better machine gives the same bits. It holds for the process and comes before anything is
// computed. Raises Error where this machine has less, or where it is too late.
void pin_instruction_set(std::string_view name);

// oneDNN multiplies bf16 matrices with the machine's own bf16 instructions (AVX512-BF16 or AMX).
// Where it does not, bf16 operands are expanded to f32 block by block (cpu/gemm.h).
bool has_native_bf16();

}  // namespace graft::cpu
