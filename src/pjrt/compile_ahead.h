#pragma once
// The compiler of a machine that is not here, run in a child process: XLA may
// take all memory or end the process that it runs in, and neither may happen to
// graft.
//
//   const AheadResult result = compile_ahead({.target =
//   parse_target("v5e:4x4"), .text = text,
//                                             .partitions = 16});
//   if (result.memory) ... result.memory->total_bytes() ...
//   else               ... result.failure ...
//
// The child is graft itself with a hidden command, so that it begins without
// threads; it reads its job from a folder and leaves its result there
// (run_compile_ahead_child).

#include <filesystem>
#include <optional>
#include <string>

#include "pjrt/client.h"
#include "pjrt/hlo_summary.h"
#include "pjrt/target.h"

namespace graft::pjrt {

inline constexpr const char* kCompileAheadCommand = "compile-ahead";

struct AheadJob {
  Target target;
  std::string text;  // StableHLO
  int64_t partitions = 1;
  std::filesystem::path save;     // where the compiled program goes; empty: nowhere
  std::filesystem::path program;  // the graft that is started; empty: this one
};

struct AheadResult {
  std::optional<MemoryStatistics> memory;  // of one device; nothing: it failed
  std::optional<Collectives> collectives;  // nothing where the compiler does not tell
  std::string device_kind;
  double seconds = 0;
  double flops = 0;     // of one device, by the compiler's own count; 0: not told
  std::string failure;  // why it failed, for a person
  // The compiler found that a device has too little memory: what the program
  // needs and what there is, where it said so.
  bool out_of_memory = false;
  int64_t needed_bytes = 0, capacity_bytes = 0;
};

// Raises Error where the plugin is not installed or the child cannot be
// started; whatever happens in the child is in the result.
AheadResult compile_ahead(const AheadJob& job);

// The child's side: compiles the job in `folder`. Raises Error; the exit code
// is main's.
void run_compile_ahead_child(const std::filesystem::path& folder);

// A saved program: its bytes under a line that says what it is. Loading raises
// Error where the text, the target or the number of devices is another one.
std::string load_saved_program(const std::filesystem::path& file, const Target& target,
                               const std::string& text, int64_t partitions);

// "Used 20.16G of 15.75G hbm" of the TPU compiler's refusal, in bytes: needed,
// capacity.
std::optional<std::pair<int64_t, int64_t>> memory_of_refusal(const std::string& message);

}  // namespace graft::pjrt
