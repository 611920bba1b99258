#pragma once
// What the benchmarks share: where the model lies, what machine this is, how long the process has
// run.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace graft::bench {

// SmolLM2-135M-Instruct as GGUF in the cache that the set-up fills (base/user_cache.h).
std::filesystem::path default_model();

std::string processor_name();  // as /proc/cpuinfo has it; "unknown processor" where it has none
double process_age_seconds();  // since this process started; in steps of 10 ms

// A clock to time with: wall time or, where other programs disturb it, the processor time of this
// thread.
enum class Clock : uint8_t { kWall, kThread, kProcess };
double seconds_now(Clock clock);  // since some moment

double median(std::vector<double> values);  // of at least one value

}  // namespace graft::bench
