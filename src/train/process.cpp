#include "train/process.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace graft {
namespace {

// A line "VmRSS:     123456 kB".
int64_t bytes_in(const char* file, std::string_view name) {
  std::ifstream status(file);
  std::string line;
  while (std::getline(status, line)) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    int64_t kibibytes = 0;
    for (const char c : line) {
      if (c >= '0' && c <= '9') kibibytes = kibibytes * 10 + (c - '0');
    }
    return kibibytes * 1024;
  }
  return 0;
}

// A file of one number; "max" and a missing file: none.
int64_t number_in(const char* file) {
  std::ifstream stream(file);
  int64_t value = 0;
  return stream >> value ? value : -1;
}

}  // namespace

int64_t available_memory_bytes() {
  int64_t bytes = bytes_in("/proc/meminfo", "MemAvailable");
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const int64_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit >= 0 && used >= 0) bytes = std::min(bytes, std::max<int64_t>(limit - used, 0));
  return bytes;
}

int64_t resident_bytes() { return bytes_in("/proc/self/status", "VmRSS"); }
int64_t peak_resident_bytes() { return bytes_in("/proc/self/status", "VmHWM"); }

}  // namespace graft
