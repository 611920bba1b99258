#pragma once
// Safetensors files, as the Hugging Face library defines them: eight bytes of header length
// (little-endian), a JSON header that gives each tensor's type, shape and byte range, then the
// data, which the ranges cover without hole or overlap.
//
// Reading maps the file and trusts nothing: each number is checked before it is used, and errors
// name the tensor. Tensors are views of the mapping and keep it alive.
//
//   const auto file = SafetensorsFile::open("model");  // a file, an index, or a folder of shards
//   for (const std::string& name : file.names()) use(name, file.tensor(name));
//
// Writing streams: all tensors are declared first, then given one after the other.
//
//   SafetensorsWriter writer("out.safetensors", {{"x", DType::kF32, {2, 3}}}, {{"format", "pt"}});
//   writer.add("x", tensor);
//   writer.commit();

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/tensor.h"

namespace graft {

using SafetensorsMetadata = std::map<std::string, std::string>;

// The name of a type in a header ("BF16"), and back. Empty where there is none: safetensors has no
// packed 4-bit integers, and graft computes nothing with I16, U16, U64, C64, F8_E8M0, F6 and F4.
std::string_view safetensors_type_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view type);

struct SafetensorsEntry {
  std::string name;
  std::string type;  // as written in the header
  std::optional<DType>
      dtype;  // none: known to the format, not to graft; see SafetensorsFile::bytes
  Shape shape;
  size_t offset = 0;  // of the data, from the beginning of its file
  size_t size = 0;    // bytes
  size_t file = 0;    // index into SafetensorsFile::files
};

class SafetensorsFile {
 public:
  // `path` is a .safetensors file, a *.safetensors.index.json, or a folder that holds
  // model.safetensors or model.safetensors.index.json.
  static SafetensorsFile open(const std::filesystem::path& path);
  // From bytes in memory, which the caller keeps alive; `name` stands for the path in errors.
  static SafetensorsFile open(std::span<const std::byte> bytes, const std::string& name);

  const std::vector<std::string>& names() const&;               // in the order of the data
  std::vector<std::string> names() const&& { return names(); }  // of a temporary
  const SafetensorsEntry* find(std::string_view name) const;    // nullptr if there is none
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  // The tensor as a view of the file; a copy only where the file puts it at an address that its
  // type cannot be read at. Raises Error if there is none, or if graft has no such type.
  Tensor tensor(std::string_view name) const;
  // Its bytes, whatever its type.
  std::span<const std::byte> bytes(std::string_view name) const;

  const SafetensorsMetadata& metadata() const;  // of a single file; empty for shards
  const std::vector<std::filesystem::path>& files() const;

 private:
  struct State;
  explicit SafetensorsFile(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const SafetensorsEntry& get(std::string_view name) const;

  std::shared_ptr<const State> state_;
};

struct SafetensorsDeclaration {
  std::string name;
  DType dtype;
  Shape shape;
};

// How a file of these tensors begins: the header's length and the header. What follows is their
// bytes, in the order given. `where` names the file in errors.
std::string safetensors_beginning(const std::vector<SafetensorsDeclaration>& tensors,
                                  const SafetensorsMetadata& metadata, const std::string& where);

// The file appears under its name, whole, when commit returns (see AtomicFile).
class SafetensorsWriter {
 public:
  // The data is laid out in the order given.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsDeclaration> tensors,
                    const SafetensorsMetadata& metadata = {});

  // The next tensor in the order declared; type and shape must be those declared.
  void add(std::string_view name, const Tensor& tensor);
  // The same in pieces: raw bytes of the next tensor, in as many calls as one likes.
  void add_bytes(std::string_view name, std::span<const std::byte> bytes);
  void commit();

 private:
  size_t current_size() const;

  std::string where_;
  std::vector<SafetensorsDeclaration> tensors_;
  AtomicFile file_;
  size_t next_ = 0;     // index of the tensor being written
  size_t written_ = 0;  // bytes of it so far
};

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace graft
