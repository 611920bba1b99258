#include "train/compute.h"

#include <sched.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cpu/kernel.h"
#include "cpu/native_executor.h"
#include "formats/json.h"
#include "models/layout.h"
#include "models/weights.h"
#include "pjrt/executor.h"
#include "pjrt/wheels.h"

namespace graft {
namespace {

constexpr std::string_view kPjrt = "pjrt:";

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

bool multiplies_bf16() {
  const std::string_view isa = cpu::instruction_set();
  return isa == "avx512_bf16" || isa == "amx";
}

bool has_weights(const std::filesystem::path& model) {
  return is_gguf(model) || std::filesystem::exists(model / "model.safetensors") ||
         std::filesystem::exists(model / "model.safetensors.index.json");
}

// What config.json says of its weights: transformers wrote torch_dtype, and now writes dtype.
bool configured_in_bf16(const std::filesystem::path& model) {
  const nlohmann::json config = read_json_file(model / "config.json");
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key) && config[key].is_string()) return config[key] == "bfloat16";
  }
  return false;
}

bool stored_in_bf16(const std::filesystem::path& model) {
  const ModelConfig config = read_model_config(model);  // says what is wrong with the path, too
  if (!has_weights(model)) return configured_in_bf16(model);
  const BaseWeights weights = BaseWeights::open(model, config);
  for (const VariableSpec& v : weights.parameters()) {
    if (v.name.ends_with("_proj.weight") && v.dtype != DType::kBF16) return false;
  }
  return true;
}

// All that is the options' own, without the type to compute in.
Compute as_asked_for(const ComputeOptions& options) {
  Compute compute;
  compute.executor = options.executor;
  compute.virtual_devices = options.virtual_devices;
  compute.threads = options.threads > 0 ? static_cast<int>(options.threads) : usable_cores();
  return compute;
}

}  // namespace

std::unique_ptr<Executor> make_executor(const Compute& compute) {
  if (compute.native()) return cpu::make_native_executor(compute.threads);
  pjrt::ExecutorOptions options;
  options.plugin = pjrt::find_plugin(compute.executor.substr(kPjrt.size()));
  options.virtual_devices = compute.virtual_devices;
  options.mesh = compute.mesh;
  options.rules = compute.rules;
  return pjrt::make_executor(options);
}

Compute choose_compute(const ComputeOptions& options, const std::filesystem::path& model) {
  if (options.executor != "native" && options.executor != "pjrt:cpu") {
    return choose_accelerator_compute(options, model);
  }
  Compute compute = as_asked_for(options);
  const std::string isa(cpu::instruction_set());
  switch (options.dtype) {
    case ComputeDType::kF32: compute.reason = fmt::format("f32 as asked for ({})", isa); break;
    case ComputeDType::kBF16:
      compute.dtype = DType::kBF16;
      compute.reason =
          multiplies_bf16()
              ? fmt::format("bf16 as asked for ({})", isa)
              : fmt::format("bf16 as asked for; this machine ({}) expands it to f32", isa);
      break;
    case ComputeDType::kAuto:
      if (!multiplies_bf16()) {
        compute.reason = fmt::format("f32: this machine ({}) has no bf16 products", isa);
      } else if (!stored_in_bf16(model)) {
        compute.reason = fmt::format("f32 ({}): the weights are not stored in bf16", isa);
      } else {
        compute.dtype = DType::kBF16;
        compute.reason = fmt::format("bf16: the weights are, and this machine has {}", isa);
      }
  }
  return compute;
}

Compute choose_accelerator_compute(const ComputeOptions& options,
                                   const std::filesystem::path& model) {
  Compute compute = as_asked_for(options);
  if (options.dtype != ComputeDType::kAuto) {
    if (options.dtype == ComputeDType::kBF16) compute.dtype = DType::kBF16;
    compute.reason = fmt::format("{} as asked for", dtype_name(compute.dtype));
  } else if (stored_in_bf16(model)) {
    compute.dtype = DType::kBF16;
    compute.reason = "bf16: the weights are";
  } else {
    compute.reason = "f32: the weights are not stored in bf16";
  }
  return compute;
}

}  // namespace graft
