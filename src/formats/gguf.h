#pragma once
// GGUF files, versions 2 and 3, little-endian: typed metadata, then tensors in ggml's block
// formats.
//
// Reading maps the file and trusts nothing: every count, length and offset is checked before it is
// used, and errors name the key or the tensor. Shapes are given slowest axis first, [rows,
// columns], the reverse of the order in the file. Values are those stored: what a converter did to
// them (the row order of Llama's q and k, the 1 added to Gemma's norms) is the models layer's to
// undo.
//
//   const auto file = GgufFile::open("model.gguf");
//   const std::string architecture = file.get_string("general.architecture");
//   const uint32_t layers = file.get_u32(architecture + ".block_count");
//   const Tensor embedding = file.dequantize("token_embd.weight");  // f32

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tensor.h"
#include "formats/ggml_blocks.h"

namespace graft {

// The kinds of metadata values; the numbers are those in files.
enum class GgufKind : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

std::string_view gguf_kind_name(GgufKind kind);  // "u32"

struct GgufTensor {
  std::string name;
  GgmlType type;
  Shape shape;        // [columns] or [..., rows, columns]
  size_t offset = 0;  // of the data, from the beginning of the file
  size_t size = 0;    // bytes

  const GgmlTypeInfo& info() const { return *ggml_type_info(static_cast<uint32_t>(type)); }
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const;  // the product of all axes but the last
  size_t row_bytes() const;
};

class GgufFile {
 public:
  static GgufFile open(const std::filesystem::path& path);
  // From bytes in memory, which the caller keeps alive; `name` stands for the path in errors.
  static GgufFile open(std::span<const std::byte> bytes, const std::string& name);

  uint32_t version() const;
  const std::string& name() const;  // the path

  // Metadata. find_* give nothing where the key is absent, get_* raise Error; both raise Error
  // where the value is of another kind or does not fit. Integers may be stored in any integer kind,
  // f32 also as f64.
  std::vector<std::string> keys() const;  // in the order of the file
  bool has(std::string_view key) const;
  std::optional<GgufKind> kind(std::string_view key) const;  // kArray for arrays
  size_t array_length(std::string_view key) const;           // 0 unless it is an array
  std::string describe(std::string_view key) const;  // for people: "30", "llama", "49152 of string"
  // The value as it lies in the file, after its kind (of an array: from its head on); the key must
  // be there.
  std::span<const std::byte> value_bytes(std::string_view key) const;

  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<int64_t> find_i64(std::string_view key) const;
  std::optional<uint32_t> find_u32(std::string_view key) const;
  std::optional<float> find_f32(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::vector<std::string>> find_strings(std::string_view key) const;
  std::optional<std::vector<int32_t>> find_i32s(std::string_view key) const;
  std::optional<std::vector<float>> find_f32s(std::string_view key) const;
  std::optional<std::vector<bool>> find_bools(std::string_view key) const;

  std::string get_string(std::string_view key) const;
  int64_t get_i64(std::string_view key) const;
  uint32_t get_u32(std::string_view key) const;
  float get_f32(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::vector<std::string> get_strings(std::string_view key) const;
  std::vector<int32_t> get_i32s(std::string_view key) const;
  std::vector<float> get_f32s(std::string_view key) const;

  // Tensors, in the order of the file.
  const std::vector<GgufTensor>& tensors() const&;
  std::vector<GgufTensor> tensors() const&& { return tensors(); }  // of a temporary
  const GgufTensor* find(std::string_view name) const;             // nullptr if there is none
  const GgufTensor& tensor(std::string_view name) const;           // raises Error if there is none

  std::span<const std::byte> bytes(const GgufTensor& tensor) const;  // as they lie in the file
  // The same as a u8 tensor [rows, row_bytes] that keeps the mapping alive.
  Tensor blocks(const GgufTensor& tensor) const;

  // All values as f32, in the tensor's shape; raises Error naming a type that is not supported.
  Tensor dequantize(const GgufTensor& tensor) const;
  Tensor dequantize(std::string_view name) const { return dequantize(tensor(name)); }
  // Rows begin to end into `values` [end - begin, columns]; safe to call from several threads at
  // once.
  void dequantize_rows(const GgufTensor& tensor, int64_t begin, int64_t end, float* values) const;

 private:
  struct State;
  explicit GgufFile(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace graft
