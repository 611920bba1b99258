#include "cpu/isa.h"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
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

struct Pin {
  std::string_view name;
  dnnl_cpu_isa_t dnnl;
  int64_t disabled;  // of Highway's targets
};

// Highway gives a better target a lower bit.
constexpr int64_t beyond(int64_t target) { return target - 1; }

constexpr Pin kPins[] = {
    {"sse4", dnnl_cpu_isa_sse41, beyond(HWY_SSE4)},
    {"avx2", dnnl_cpu_isa_avx2, beyond(HWY_AVX2)},
    {"avx512", dnnl_cpu_isa_avx512_core, beyond(HWY_AVX3)},
    {"avx512_bf16", dnnl_cpu_isa_avx512_core_bf16, 0},
    {"amx", dnnl_cpu_isa_avx512_core_amx, 0},
};

}  // namespace

void pin_instruction_set(std::string_view name) {
  const auto* pin = std::find_if(std::begin(kPins), std::end(kPins),
                                 [&](const Pin& candidate) { return candidate.name == name; });
  GRAFT_CHECK(pin != std::end(kPins), "no instruction set {}", name);
  // Refused once oneDNN has looked at the machine: then it must have chosen the same.
  const bool in_time = dnnl_set_max_cpu_isa(pin->dnnl) == dnnl_success;
  hwy::DisableTargets(pin->disabled);
  if (instruction_set() == name) return;
  throw Error(in_time ? fmt::format("this machine cannot compute with {}; its best is {}", name,
                                    instruction_set())
                      : fmt::format("this process computes with {} already", instruction_set()),
              "compute.isa");
}

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
