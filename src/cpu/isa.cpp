#include "cpu/isa.h"

#include <oneapi/dnnl/dnnl.h>

#include "cpu/kernel.h"
#include "cpu/kernels/simd.h"

#include <hwy/highway.h>

namespace graft::cpu {
namespace {

// oneDNN's sets are bit masks, each containing those it builds on.
bool dnnl_has(dnnl_cpu_isa_t isa) {
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & static_cast<unsigned>(isa)) ==
         static_cast<unsigned>(isa);
}

}  // namespace

bool has_native_bf16() {
  static const bool native = dnnl_has(dnnl_cpu_isa_avx512_core_bf16);
  return native;
}

std::string_view instruction_set() {
  if (dnnl_has(dnnl_cpu_isa_avx512_core_amx)) return "amx";
  if (has_native_bf16()) return "avx512_bf16";
  const int64_t targets = hwy::SupportedTargets();
  if ((targets & HWY_AVX3) != 0) return "avx512";
  if ((targets & HWY_AVX2) != 0) return "avx2";
  return (targets & HWY_SSE4) != 0 ? "sse4" : "baseline";
}

}  // namespace graft::cpu
