#pragma once
// Machines that graft can plan for without owning one: their compiler runs
// here, ahead of time.
//
//   const Target target = parse_target("v5e:4x4");    // 16 chips
//   target.memory_bytes;                               // of one
//
// Sources: Google Cloud's pages of TPU v5e, v5p and v6e; NVIDIA's data sheets
// of A100, H100, H200 and B200; the properties that CUDA reports of them.

#include <cstdint>
#include <string>
#include <string_view>

#include "pjrt/plugin.h"

namespace graft::pjrt {

struct Target {
  std::string name;      // as it was given: "h100:8"
  std::string plugin;    // "cpu", "cuda", "tpu"
  std::string topology;  // what the plugin calls it: "v5e:4x4"; "" for CPU devices
  Options options;       // of the topology
  int64_t devices = 1;
  int64_t memory_bytes = 0;  // of one device, for a program; 0: the host's
  double flops = 0;          // of one device, dense bf16 products a second; 0: not known
};

// v5e:4x4, v6e:2x4, v5p:2x2x1; h100:8, h200:8, a100-80:8, b200:8; pjrt:cpu.
// Raises Error listing them for anything else. pjrt:cpu has as many devices as
// the mesh (0 here).
Target parse_target(std::string_view name);

}  // namespace graft::pjrt
