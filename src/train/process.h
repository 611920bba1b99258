#pragma once
// What the kernel says of this process's memory (/proc/self/status).

#include <cstdint>

namespace graft {

// What the machine can still give to processes (MemAvailable), and the cgroup's limit if less.
int64_t available_memory_bytes();

int64_t resident_bytes();  // VmRSS: resident now
int64_t
peak_resident_bytes();  // VmHWM: the most that was ever resident; 0 where the kernel does not say

}  // namespace graft
