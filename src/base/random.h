#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). The same bits on any executor, thread count, mesh or resume.

#include <array>
#include <cstdint>
#include <string_view>

namespace graft {

// Ten rounds; key and counter are given in the paper's order, word 0 first.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// FNV-1a, 32 bits: names a random stream by the full name of its module or variable.
uint32_t fnv1a_32(std::string_view text);

// A sequential generator over one stream: key = seed, counter = (block, 0, 0, stream).
class Philox {
 public:
  Philox(uint64_t seed, uint32_t stream);
  uint32_t next_u32();
  double uniform();                // [0, 1), 53 bits
  double normal();                 // mean 0, deviation 1 (Box-Muller)
  uint64_t below(uint64_t bound);  // unbiased, bound > 0

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> lanes_{};
  int used_ = 4;
};

}  // namespace graft
