#pragma once
// Writing GGUF files, version 3: metadata in the order given, then tensors, streamed one after the
// other. The file appears whole, when commit returns (see AtomicFile).
//
//   GgufMetadata metadata;
//   metadata.set_string("general.architecture", "llama");
//   metadata.set_u32("llama.block_count", 30);
//   GgufWriter writer("out.gguf", metadata, {{"output_norm.weight", GgmlType::kF32, {576}}});
//   writer.add("output_norm.weight", tensor);
//   writer.commit();
//
// Source: the GGUF specification (ggml).

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "formats/gguf.h"

namespace graft {

// Metadata to be written: keys with values, in order. Setting a key that is there replaces its
// value in its place.
class GgufMetadata {
 public:
  void set_u32(std::string_view key, uint32_t value);
  void set_f32(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_strings(std::string_view key, std::span<const std::string> values);
  void set_i32s(std::string_view key, std::span<const int32_t> values);
  void set_f32s(std::string_view key, std::span<const float> values);
  // A value of another file as it is, whatever its kind; the file must have it.
  void copy(const GgufFile& file, std::string_view key);
  void remove(std::string_view key);

  bool has(std::string_view key) const;
  size_t size() const { return values_.size(); }
  std::string encoded() const;  // as it lies in a file

 private:
  void set(std::string_view key, GgufKind kind, std::string payload);

  std::vector<std::pair<std::string, std::string>> values_;  // key, kind and content
};

struct GgufDeclaration {
  std::string name;
  GgmlType type;
  Shape shape;  // slowest axis first, [rows, columns]
};

// The type that holds these elements as they are; raises Error for one that GGUF has not.
GgmlType ggml_type_of(DType dtype);

class GgufWriter {
 public:
  // Raises Error for a row that is not a whole number of blocks, for more than four axes, and for
  // two tensors of one name.
  GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata,
             std::vector<GgufDeclaration> tensors);

  // The next tensor in the order declared, of exactly the type and shape declared.
  void add(std::string_view name, const Tensor& tensor);
  // The same as bytes in the declared type (blocks of a quantised one).
  void add_bytes(std::string_view name, std::span<const std::byte> bytes);
  void commit();

 private:
  void pad_to_alignment();

  std::string where_;
  std::vector<GgufDeclaration> tensors_;
  AtomicFile file_;
  size_t position_ = 0;  // bytes written
  size_t next_ = 0;      // index of the tensor that is due
};

}  // namespace graft
