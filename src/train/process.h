#pragma once
// What the kernel says of this process's memory (/proc/self/status).

#include <cstdint>

namespace graft {

int64_t resident_bytes();  // VmRSS: resident now
int64_t
peak_resident_bytes();  // VmHWM: the most that was ever resident; 0 where the kernel does not say

}  // namespace graft
