#include "formats/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/file.h"
#include "formats/sha256_x86.h"

namespace graft {
namespace {

uint32_t big_endian_word(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) << 24 | static_cast<uint32_t>(bytes[1]) << 16 |
         static_cast<uint32_t>(bytes[2]) << 8 | static_cast<uint32_t>(bytes[3]);
}

// Takes one block into the state.
void compress_block(std::array<uint32_t, 8>& state, const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian_word(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t first = h + s1 + ((e & f) ^ (~e & g)) + internal::kSha256Round[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t second = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first;
    d = c, c = b, b = a, a = first + second;
  }
  const std::array<uint32_t, 8> change = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += change[i];
}

}  // namespace

Sha256::Sha256() : instructions_(internal::sha256_instructions_available()) {}

Sha256 Sha256::without_instructions() {
  Sha256 hash;
  hash.instructions_ = false;
  return hash;
}

void Sha256::compress(const uint8_t* blocks, size_t count) {
  if (instructions_) {
    internal::sha256_compress_x86(state_, blocks, count);
  } else {
    for (size_t i = 0; i < count; ++i) compress_block(state_, blocks + 64 * i);
  }
}

void Sha256::update(std::span<const std::byte> bytes) {
  const auto* next = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  const size_t pending = length_ % 64;
  length_ += left;
  if (pending > 0) {
    const size_t taken = std::min(left, 64 - pending);
    std::copy_n(next, taken, pending_.begin() + static_cast<ptrdiff_t>(pending));
    next += taken;
    left -= taken;
    if (pending + taken < 64) return;
    compress(pending_.data(), 1);
  }
  compress(next, left / 64);
  std::copy_n(next + left / 64 * 64, left % 64, pending_.begin());
}

// Appends a one bit, zeros, and the length in bits.
void Sha256::finish() {
  const uint64_t bits = length_ * 8;
  std::array<std::byte, 72> padding{std::byte{0x80}};
  const size_t zeros_end = (length_ % 64 < 56 ? 56 : 120) - length_ % 64;
  for (size_t i = 0; i < 8; ++i) {
    padding[zeros_end + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  }
  update(std::span(padding).first(zeros_end + 8));
}

Sha256::Digest Sha256::digest() const {
  Sha256 last = *this;
  last.finish();
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(last.state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

std::string Sha256::hex() const {
  const Digest bytes = digest();
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  return sha256_hex(MappedFile::open(path)->bytes());
}

}  // namespace graft
