#include "base/random.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace graft {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint32_t fnv1a_32(std::string_view text) {
  uint32_t hash = 0x811C9DC5;
  for (const char c : text) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x01000193;
  }
  return hash;
}

Philox::Philox(uint64_t seed, uint32_t stream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      counter_{0, 0, 0, stream} {}

uint32_t Philox::next_u32() {
  if (used_ == 4) {
    lanes_ = philox4x32(counter_, key_);
    if (++counter_[0] == 0) ++counter_[1];
    used_ = 0;
  }
  return lanes_[static_cast<size_t>(used_++)];
}

double Philox::uniform() {
  const uint64_t high = next_u32() >> 5;  // 27 bits
  const uint64_t low = next_u32() >> 6;   // 26 bits
  return static_cast<double>((high << 26) | low) * 0x1p-53;
}

double Philox::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));  // 1 - u is never 0
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

uint64_t Philox::below(uint64_t bound) {
  GRAFT_CHECK(bound > 0);
  // Values in the last, incomplete run of `bound` would favour small results: draw again.
  const uint64_t rejected = (0 - bound) % bound;  // 2^64 mod bound
  for (;;) {
    const uint64_t high = next_u32();
    const uint64_t value = (high << 32) | next_u32();
    if (value >= rejected) return value % bound;
  }
}

}  // namespace graft
