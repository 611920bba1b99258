#pragma once
// Protocol buffers' wire format, as far as graft writes it (TensorBoard's events, XLA's compile
// options): a message is the concatenation of its fields, a field is a key (number << 3 | type)
// and a value.
//
//   std::string message = protobuf::varint_field(1, 7) + protobuf::bytes_field(2, "text");
//
// Source: protobuf.dev/programming-guides/encoding.

#include <cstdint>
#include <string>
#include <string_view>

namespace graft::protobuf {

std::string varint(uint64_t value);
std::string varint_field(int field, uint64_t value);  // integers, bools, enums
std::string double_field(int field, double value);
std::string float_field(int field, float value);
std::string bytes_field(int field, std::string_view value);  // strings and messages too

// The bytes of an integer, the least significant first.
template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes[i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  return bytes;
}

}  // namespace graft::protobuf
