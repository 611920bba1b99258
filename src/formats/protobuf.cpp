#include "formats/protobuf.h"

#include <bit>

namespace graft::protobuf {
namespace {

enum WireType : uint64_t { kVarint = 0, k64Bit = 1, kLengthDelimited = 2, k32Bit = 5 };

std::string key(int field, WireType type) {
  return varint(static_cast<uint64_t>(field) << 3 | type);
}

}  // namespace

std::string varint(uint64_t value) {
  std::string bytes;
  while (value >= 0x80) {
    bytes += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  return bytes + static_cast<char>(value);
}

std::string varint_field(int field, uint64_t value) { return key(field, kVarint) + varint(value); }

std::string double_field(int field, double value) {
  return key(field, k64Bit) + little_endian(std::bit_cast<uint64_t>(value));
}

std::string float_field(int field, float value) {
  return key(field, k32Bit) + little_endian(std::bit_cast<uint32_t>(value));
}

std::string bytes_field(int field, std::string_view value) {
  return key(field, kLengthDelimited) + varint(value.size()) + std::string(value);
}

}  // namespace graft::protobuf
