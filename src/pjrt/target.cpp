#include "pjrt/target.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace graft::pjrt {
namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;

struct Tpu {
  const char* name;
  size_t dimensions;     // of its topologies
  int64_t memory_bytes;  // what the compiler gives to programs
  double flops;
};
constexpr Tpu kTpus[] = {
    {"v5e", 2, 16 * kGibibyte - kGibibyte / 4, 197e12},
    {"v6e", 2, 32 * kGibibyte - 3 * kGibibyte / 4, 918e12},
    {"v5p", 3, 95 * kGibibyte, 459e12},
};

struct Gpu {
  const char* name;
  const char* description;
  int compute_major;
  bool accelerated_features;  // the "a" of sm_90a
  int cores, fpus_per_core;
  int64_t memory_bytes, memory_bandwidth, l2_bytes, shared_per_core, shared_per_block;
  double clock_ghz;
  double flops;
};
constexpr Gpu kGpus[] = {
    {"a100-80", "NVIDIA A100-SXM4-80GB", 8, false, 108, 64, 85'100'068'864, 2'039'040'000'000,
     41'943'040, 167'936, 166'912, 1.41, 312e12},
    {"h100", "NVIDIA H100 80GB HBM3", 9, true, 132, 128, 84'942'979'072, 3'352'320'000'000,
     52'428'800, 233'472, 232'448, 1.98, 989e12},
    {"h200", "NVIDIA H200 141GB HBM3e", 9, true, 132, 128, 151'397'597'184, 4'800'000'000'000,
     52'428'800, 233'472, 232'448, 1.98, 989e12},
    {"b200", "NVIDIA B200", 10, true, 148, 128, 191'514'411'008, 7'672'320'000'000, 132'644'864,
     233'472, 232'448, 1.965, 2250e12},
};
// What the driver, the libraries and the collectives take of a GPU before a
// program does.
constexpr int64_t kGpuReserve = 2 * kGibibyte;

// XLA's GpuTargetConfigProto as text
// (xla/stream_executor/device_description.proto).
std::string gpu_description(const Gpu& g) {
  return fmt::format(
      "gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 "
      "shared_memory_per_block: 49152 shared_memory_per_core: {} "
      "threads_per_core_limit: 2048 "
      "core_count: {} fpus_per_core: {} block_dim_limit_x: 2147483647 "
      "block_dim_limit_y: 65535 "
      "block_dim_limit_z: 65535 thread_dim_limit_x: 1024 thread_dim_limit_y: "
      "1024 "
      "thread_dim_limit_z: 64 memory_bandwidth: {} l2_cache_size: {} "
      "clock_rate_ghz: {} "
      "device_memory_size: {} shared_memory_per_block_optin: {} "
      "cuda_compute_capability {{ major: {}{} }} registers_per_core_limit: "
      "65536 "
      "registers_per_block_limit: 65536 }} platform_name: \"CUDA\" "
      "dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "
      "\"{}\"",
      g.shared_per_core, g.cores, g.fpus_per_core, g.memory_bandwidth, g.l2_bytes, g.clock_ghz,
      g.memory_bytes, g.shared_per_block, g.compute_major,
      g.accelerated_features ? " feature_extension: ACCELERATED_FEATURES" : "", g.description);
}

// The numbers of "2x4"; nothing if it is not of that form.
std::optional<std::vector<int64_t>> extents(std::string_view text) {
  std::vector<int64_t> numbers;
  while (true) {
    const size_t end = std::min(text.find('x'), text.size());
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + end, number);
    if (error != std::errc() || stop != text.data() + end || number < 1 || number > 4096) {
      return std::nullopt;
    }
    numbers.push_back(number);
    if (end == text.size()) return numbers;
    text.remove_prefix(end + 1);
  }
}

[[noreturn]] void refuse(std::string_view name) {
  throw Error(fmt::format("there is no target \"{}\"", name), "--target",
              "targets: cpu, pjrt:cpu, h100:8, h200:8, a100-80:8, b200:8, "
              "v5e:4x4, v6e:2x4, "
              "v5p:2x2x1");
}

}  // namespace

Target parse_target(std::string_view name) {
  Target target;
  target.name = name;
  if (name == "pjrt:cpu") {
    target.plugin = "cpu";
    target.devices = 0;
    return target;
  }
  const size_t colon = name.find(':');
  const std::string_view chip = name.substr(0, colon);
  const auto size = extents(colon == std::string_view::npos ? "1" : name.substr(colon + 1));
  if (!size) refuse(name);
  for (const Tpu& tpu : kTpus) {
    if (chip != tpu.name) continue;
    if (size->size() != tpu.dimensions) {
      throw Error(fmt::format("a topology of {} has {} extents", tpu.name, tpu.dimensions),
                  "--target", tpu.dimensions == 2 ? "as in v5e:4x4" : "as in v5p:2x2x1");
    }
    target.plugin = "tpu";
    target.topology = name;
    for (const int64_t n : *size) target.devices *= n;
    target.memory_bytes = tpu.memory_bytes;
    target.flops = tpu.flops;
    return target;
  }
  for (const Gpu& gpu : kGpus) {
    if (chip != gpu.name || size->size() != 1) continue;
    target.plugin = "cuda";
    target.devices = size->front();
    target.topology = target.name;
    target.options["target_config"] = gpu_description(gpu);
    // Slices, hosts of one, devices of a host.
    target.options["topology"] = fmt::format("1x1x{}", target.devices);
    target.memory_bytes = gpu.memory_bytes - kGpuReserve;
    target.flops = gpu.flops;
    return target;
  }
  refuse(name);
}

}  // namespace graft::pjrt
