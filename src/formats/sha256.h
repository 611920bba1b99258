#pragma once
// SHA-256 (FIPS 180-4), for the checksums of files and tensors.
//
//   sha256_hex(std::as_bytes(std::span(values)));
//   Sha256 hash; hash.update(first); hash.update(second); hash.hex();

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace graft {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  Sha256();
  // In plain code even where the processor has instructions for it, so that tests can compare.
  static Sha256 without_instructions();

  void update(std::span<const std::byte> bytes);
  Digest digest() const;    // of everything so far; more may follow
  std::string hex() const;  // 64 lower-case digits

 private:
  void compress(const uint8_t* blocks, size_t count);
  void finish();

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  bool instructions_ = false;
  uint64_t length_ = 0;  // bytes so far; length_ % 64 of them are pending
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_file(const std::filesystem::path& path);  // raises Error naming the path

}  // namespace graft
