#pragma once
// Writes small GGUF files in memory, good ones and bad ones.
//
//   GgufBuilder builder;
//   builder.string("general.architecture", "llama").u32("llama.block_count", 2);
//   builder.tensor("x", GgmlType::kF32, {3, 2}, bytes);  // file order: columns first
//   const std::string file = builder.build();

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"

namespace graft::testing {

template <typename T>
std::string raw(const T& value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string gguf_string(std::string_view text) {
  return raw(static_cast<uint64_t>(text.size())) + std::string(text);
}

class GgufBuilder {
 public:
  uint32_t version = 3;
  size_t alignment = 32;

  GgufBuilder& value(std::string_view key, GgufKind kind, const std::string& payload) {
    values_ += gguf_string(key) + raw(static_cast<uint32_t>(kind)) + payload;
    ++value_count_;
    return *this;
  }
  GgufBuilder& string(std::string_view key, std::string_view text) {
    return value(key, GgufKind::kString, gguf_string(text));
  }
  GgufBuilder& u32(std::string_view key, uint32_t number) {
    return value(key, GgufKind::kU32, raw(number));
  }
  GgufBuilder& f32(std::string_view key, float number) {
    return value(key, GgufKind::kF32, raw(number));
  }
  GgufBuilder& boolean(std::string_view key, bool truth) {
    return value(key, GgufKind::kBool, raw(static_cast<uint8_t>(truth)));
  }
  GgufBuilder& array(std::string_view key, GgufKind kind, uint64_t count,
                     const std::string& payload) {
    return value(key, GgufKind::kArray, raw(static_cast<uint32_t>(kind)) + raw(count) + payload);
  }
  GgufBuilder& strings(std::string_view key, const std::vector<std::string>& texts) {
    std::string payload;
    for (const std::string& text : texts) payload += gguf_string(text);
    return array(key, GgufKind::kString, texts.size(), payload);
  }

  // With its data at the next aligned place.
  GgufBuilder& tensor(std::string_view name, GgmlType type, const std::vector<uint64_t>& extents,
                      std::string_view data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    describe_tensor(name, static_cast<uint32_t>(type), extents, data_.size());
    data_ += data;
    return *this;
  }
  // The description alone, with any offset.
  GgufBuilder& describe_tensor(std::string_view name, uint32_t type,
                               const std::vector<uint64_t>& extents, uint64_t offset) {
    tensors_ += gguf_string(name) + raw(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) tensors_ += raw(extent);
    tensors_ += raw(type) + raw(offset);
    ++tensor_count_;
    return *this;
  }

  // The part before the data, without padding.
  std::string header() const {
    return "GGUF" + raw(version) + raw(tensor_count_) + raw(value_count_) + values_ + tensors_;
  }
  std::string build() const {
    std::string file = header();
    file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data_;
  }

 private:
  std::string values_, tensors_, data_;
  uint64_t value_count_ = 0, tensor_count_ = 0;
};

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace graft::testing
