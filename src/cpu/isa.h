#pragma once
// What this machine's vector units offer, asked once of the libraries that dispatch on it: Highway
// for graft's own loops, oneDNN for matrix products.

namespace graft::cpu {

// oneDNN multiplies bf16 matrices with the machine's own bf16 instructions (AVX512-BF16 or AMX).
// Where it does not, bf16 operands are expanded to f32 block by block (cpu/gemm.h).
bool has_native_bf16();

}  // namespace graft::cpu
