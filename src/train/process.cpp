#include "train/process.h"

#include <fstream>
#include <string>
#include <string_view>

namespace graft {
namespace {

// A line "VmRSS:     123456 kB".
int64_t status_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
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

}  // namespace

int64_t resident_bytes() { return status_bytes("VmRSS"); }
int64_t peak_resident_bytes() { return status_bytes("VmHWM"); }

}  // namespace graft
