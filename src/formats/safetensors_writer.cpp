#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "formats/safetensors.h"

namespace graft {
namespace {

std::string quoted(const std::string& text, const std::string& where) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error("a name or a metadata value is not valid UTF-8", where);
  }
}

size_t size_of(const SafetensorsDeclaration& tensor) {
  return dtype_bytes(tensor.dtype, static_cast<size_t>(element_count(tensor.shape)));
}

std::string metadata_text(const SafetensorsMetadata& metadata, const std::string& where) {
  std::string text = "\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    if (text.back() != '{') text += ',';
    text += quoted(key, where) + ':' + quoted(value, where);
  }
  return text + '}';
}

// Written by hand rather than through a JSON document, which would not keep the order of the
// tensors.
std::string header_text(const std::vector<SafetensorsDeclaration>& tensors,
                        const SafetensorsMetadata& metadata, const std::string& where) {
  std::set<std::string> names;
  std::string text = "{";
  if (!metadata.empty()) text += metadata_text(metadata, where);
  size_t offset = 0;
  for (const SafetensorsDeclaration& tensor : tensors) {
    GRAFT_CHECK(names.insert(tensor.name).second && tensor.name != "__metadata__",
                "tensor \"{}\" declared twice", tensor.name);
    const std::string_view type = safetensors_type_name(tensor.dtype);
    if (type.empty()) {
      throw Error(fmt::format("tensor \"{}\" has type {}, which safetensors does not know",
                              tensor.name, dtype_name(tensor.dtype)),
                  where);
    }
    const size_t size = size_of(tensor);
    if (text.size() > 1) text += ',';
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        quoted(tensor.name, where), type, fmt::join(tensor.shape, ","), offset,
                        offset + size);
    offset += size;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data begins at a multiple of eight
  return text;
}

}  // namespace

std::string safetensors_beginning(const std::vector<SafetensorsDeclaration>& tensors,
                                  const SafetensorsMetadata& metadata, const std::string& where) {
  const std::string header = header_text(tensors, metadata, where);
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<SafetensorsDeclaration> tensors,
                                     const SafetensorsMetadata& metadata)
    : where_(path.string()), tensors_(std::move(tensors)), file_(path) {
  file_.write(safetensors_beginning(tensors_, metadata, where_));
}

size_t SafetensorsWriter::current_size() const { return size_of(tensors_[next_]); }

void SafetensorsWriter::add(std::string_view name, const Tensor& tensor) {
  GRAFT_CHECK(next_ < tensors_.size() && written_ == 0, "{}: no tensor is due", name);
  GRAFT_CHECK(tensor.dtype() == tensors_[next_].dtype && tensor.shape() == tensors_[next_].shape,
              "{} is {} {}, declared {} {}", name, dtype_name(tensor.dtype()),
              to_string(tensor.shape()), dtype_name(tensors_[next_].dtype),
              to_string(tensors_[next_].shape));
  add_bytes(name, {tensor.bytes(), tensor.size_bytes()});
}

void SafetensorsWriter::add_bytes(std::string_view name, std::span<const std::byte> bytes) {
  GRAFT_CHECK(next_ < tensors_.size() && name == tensors_[next_].name,
              "tensor \"{}\" is not the next one declared", name);
  GRAFT_CHECK(bytes.size() <= current_size() - written_, "too many bytes for \"{}\"", name);
  file_.write(bytes);
  written_ += bytes.size();
  if (written_ == current_size()) {
    ++next_;
    written_ = 0;
  }
}

void SafetensorsWriter::commit() {
  GRAFT_CHECK(next_ == tensors_.size(), "tensor \"{}\" was not written", tensors_[next_].name);
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsDeclaration> declarations;
  for (const auto& [name, tensor] : tensors) {
    declarations.push_back({name, tensor.dtype(), tensor.shape()});
  }
  SafetensorsWriter writer(path, std::move(declarations), metadata);
  for (const auto& [name, tensor] : tensors) writer.add(name, tensor);
  writer.commit();
}

}  // namespace graft
