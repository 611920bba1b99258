#pragma once
// What a native kernel is: a function over typed buffers, chosen by operation when a graph is
// compiled.
//
// A kernel runs with the whole OpenMP team at its disposal and must give the same bits for any
// number of threads: it splits its OUTPUT into parts whose bounds depend on shapes only, and sums
// in an order that depends on shapes only. A library call is made single-threaded inside a parallel
// region (cpu/gemm.h). Scratch is planned with everything else: a kernel allocates nothing.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ir/graph.h"

namespace graft::cpu {

// One operand or result: row-major, dense.
struct Buffer {
  const Type* type = nullptr;
  void* data = nullptr;

  const Shape& shape() const { return type->shape; }
  DType dtype() const { return type->dtype; }
  int64_t elements() const { return type->elements(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

struct KernelCall {
  const Node& node;
  std::span<const Buffer> in, out;
  std::span<std::byte> scratch;  // as many bytes as Kernel::scratch_bytes said; 64-byte aligned
  int threads = 1;

  const Attributes& attributes() const { return node.attributes; }
};

struct Kernel {
  void (*run)(const KernelCall& call) = nullptr;
  // Bytes of scratch for these operand and result types; null: none.
  size_t (*scratch_bytes)(const Node& node, std::span<const Type> in, std::span<const Type> out,
                          int threads) = nullptr;
  // Result i may share the storage of an operand of the same size whose last use this is: element e
  // of the result depends on element e of that operand only, read before written.
  bool in_place = false;
  // Which operands `in_place` speaks of: bit i for operand i (operands from 32 on never).
  uint32_t in_place_operands = ~uint32_t{0};
};

// The kernel of an operation for these types, or null if there is none. Looks into the tables of
// cpu/kernels/*.h; composites without a kernel are decomposed by the compiler (cpu/compile.h).
const Kernel* find_kernel(const Node& node, std::span<const Type> in, std::span<const Type> out);

// The instruction set that the kernels were dispatched to ("avx2", "avx512", "avx512_bf16", "amx"),
// and what oneDNN uses.
std::string_view instruction_set();

}  // namespace graft::cpu
