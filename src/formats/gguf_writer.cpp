#include "formats/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"

namespace graft {
namespace {

constexpr size_t kAlignment = 32;  // the specification's default, so that no key need state it
constexpr uint32_t kVersion = 3;
constexpr size_t kMostAxes = 4;

template <typename T>
std::string raw(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

std::string counted(std::string_view text) {
  return raw(static_cast<uint64_t>(text.size())) + std::string(text);
}

// The head of an array's content: the kind of its elements and their number.
std::string array_head(GgufKind kind, size_t count) {
  return raw(static_cast<uint32_t>(kind)) + raw(static_cast<uint64_t>(count));
}

template <typename T>
std::string numbers(GgufKind kind, std::span<const T> values) {
  return array_head(kind, values.size()) +
         std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

size_t aligned(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

// Bytes of a declared tensor.
size_t size_of(const GgufDeclaration& tensor, const std::string& where) {
  const GgmlTypeInfo* info = ggml_type_info(static_cast<uint32_t>(tensor.type));
  GRAFT_CHECK(info != nullptr, "tensor \"{}\" has no type", tensor.name);
  if (tensor.shape.size() > kMostAxes) {
    throw Error(fmt::format("tensor \"{}\" has {} axes; GGUF has at most {}", tensor.name,
                            tensor.shape.size(), kMostAxes),
                where);
  }
  const auto columns = static_cast<size_t>(tensor.shape.empty() ? 1 : tensor.shape.back());
  if (columns % info->block_values != 0) {
    throw Error(fmt::format("tensor \"{}\" has rows of {} values, not whole blocks of {} ({})",
                            tensor.name, columns, info->block_values, info->name),
                where);
  }
  return static_cast<size_t>(element_count(tensor.shape)) / info->block_values * info->block_bytes;
}

}  // namespace

void GgufMetadata::set(std::string_view key, GgufKind kind, std::string payload) {
  std::string value = raw(static_cast<uint32_t>(kind)) + std::move(payload);
  const auto found =
      std::find_if(values_.begin(), values_.end(), [&](const auto& v) { return v.first == key; });
  if (found != values_.end()) found->second = std::move(value);
  else values_.emplace_back(std::string(key), std::move(value));
}

void GgufMetadata::set_u32(std::string_view key, uint32_t value) {
  set(key, GgufKind::kU32, raw(value));
}
void GgufMetadata::set_f32(std::string_view key, float value) {
  set(key, GgufKind::kF32, raw(value));
}
void GgufMetadata::set_bool(std::string_view key, bool value) {
  set(key, GgufKind::kBool, raw(static_cast<uint8_t>(value)));
}
void GgufMetadata::set_string(std::string_view key, std::string_view value) {
  set(key, GgufKind::kString, counted(value));
}
void GgufMetadata::set_strings(std::string_view key, std::span<const std::string> values) {
  std::string payload = array_head(GgufKind::kString, values.size());
  for (const std::string& value : values) payload += counted(value);
  set(key, GgufKind::kArray, std::move(payload));
}
void GgufMetadata::set_i32s(std::string_view key, std::span<const int32_t> values) {
  set(key, GgufKind::kArray, numbers(GgufKind::kI32, values));
}
void GgufMetadata::set_f32s(std::string_view key, std::span<const float> values) {
  set(key, GgufKind::kArray, numbers(GgufKind::kF32, values));
}

void GgufMetadata::copy(const GgufFile& file, std::string_view key) {
  const std::optional<GgufKind> kind = file.kind(key);
  GRAFT_CHECK(kind, "{} has no metadata \"{}\"", file.name(), key);
  const std::span<const std::byte> content = file.value_bytes(key);
  set(key, *kind, {reinterpret_cast<const char*>(content.data()), content.size()});
}

void GgufMetadata::remove(std::string_view key) {
  std::erase_if(values_, [&](const auto& v) { return v.first == key; });
}

bool GgufMetadata::has(std::string_view key) const {
  return std::any_of(values_.begin(), values_.end(), [&](const auto& v) { return v.first == key; });
}

std::string GgufMetadata::encoded() const {
  std::string text;
  for (const auto& [key, value] : values_) text += counted(key) + value;
  return text;
}

GgmlType ggml_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return GgmlType::kF32;
    case DType::kF16: return GgmlType::kF16;
    case DType::kBF16: return GgmlType::kBF16;
    case DType::kF64: return GgmlType::kF64;
    default:
      throw Error(fmt::format("GGUF files have no tensors of {}", dtype_name(dtype)), "",
                  "use f32, f16 or bf16");
  }
}

GgufWriter::GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata,
                       std::vector<GgufDeclaration> tensors)
    : where_(path.string()), tensors_(std::move(tensors)), file_(path) {
  std::string header = "GGUF" + raw(kVersion) + raw(static_cast<uint64_t>(tensors_.size())) +
                       raw(static_cast<uint64_t>(metadata.size())) + metadata.encoded();
  std::set<std::string_view> names;
  size_t offset = 0;  // in the data
  for (const GgufDeclaration& tensor : tensors_) {
    GRAFT_CHECK(names.insert(tensor.name).second, "tensor \"{}\" declared twice", tensor.name);
    header += counted(tensor.name) + raw(static_cast<uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent) {
      header += raw(static_cast<uint64_t>(*extent));
    }
    header += raw(static_cast<uint32_t>(tensor.type)) + raw(static_cast<uint64_t>(offset));
    offset += aligned(size_of(tensor, where_));
  }
  file_.write(header);
  position_ = header.size();
  pad_to_alignment();
}

void GgufWriter::pad_to_alignment() {
  const size_t gap = aligned(position_) - position_;
  file_.write(std::string(gap, '\0'));
  position_ += gap;
}

void GgufWriter::add(std::string_view name, const Tensor& tensor) {
  GRAFT_CHECK(next_ < tensors_.size(), "{}: no tensor is due", name);
  const GgufDeclaration& due = tensors_[next_];
  GRAFT_CHECK(ggml_type_of(tensor.dtype()) == due.type && tensor.shape() == due.shape,
              "{} is {} {}, declared {}", name, dtype_name(tensor.dtype()),
              to_string(tensor.shape()), to_string(due.shape));
  add_bytes(name, {tensor.bytes(), tensor.size_bytes()});
}

void GgufWriter::add_bytes(std::string_view name, std::span<const std::byte> bytes) {
  GRAFT_CHECK(next_ < tensors_.size() && name == tensors_[next_].name,
              "tensor \"{}\" is not the next one declared", name);
  GRAFT_CHECK(bytes.size() == size_of(tensors_[next_], where_), "\"{}\" has {} bytes", name,
              bytes.size());
  file_.write(bytes);
  position_ += bytes.size();
  pad_to_alignment();
  ++next_;
}

void GgufWriter::commit() {
  GRAFT_CHECK(next_ == tensors_.size(), "tensor \"{}\" was not written", tensors_[next_].name);
  file_.commit();
}

}  // namespace graft
