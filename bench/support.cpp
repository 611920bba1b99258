#include "bench/support.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/user_cache.h"

namespace graft::bench {

std::filesystem::path default_model() {
  return user_cache_folder() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

double seconds_now(Clock clock) {
  const clockid_t id = clock == Clock::kWall     ? CLOCK_MONOTONIC
                       : clock == Clock::kThread ? CLOCK_THREAD_CPUTIME_ID
                                                 : CLOCK_PROCESS_CPUTIME_ID;
  timespec now{};
  clock_gettime(id, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double process_age_seconds() {
  std::ifstream file("/proc/self/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  // The second field, a name in brackets, may hold spaces; the start is field 22, in ticks since
  // boot.
  const size_t name_end = text.rfind(')');
  GRAFT_CHECK(name_end != std::string::npos, "/proc/self/stat cannot be read");
  std::istringstream rest(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double started = std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started;
}

double median(std::vector<double> values) {
  GRAFT_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace graft::bench
