#include "formats/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf_reader.h"

namespace graft {

using internal::GgufValue;

int64_t GgufTensor::rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

size_t GgufTensor::row_bytes() const {
  return static_cast<size_t>(columns()) / info().block_values * info().block_bytes;
}

struct GgufFile::State {
  std::string name;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  internal::GgufContents contents;
  std::unordered_map<std::string_view, const GgufValue*> values;
  std::unordered_map<std::string_view, const GgufTensor*> tensors;

  void parse() {
    contents = internal::parse_gguf(bytes, name);
    for (const GgufValue& value : contents.values) values.emplace(value.key, &value);
    for (const GgufTensor& tensor : contents.tensors) tensors.emplace(tensor.name, &tensor);
  }

  const GgufValue* find(std::string_view key) const {
    const auto found = values.find(key);
    return found == values.end() ? nullptr : found->second;
  }

  [[noreturn]] void fail(const GgufValue& value, std::string_view wanted) const {
    const bool array = value.kind == GgufKind::kArray;
    throw Error(
        fmt::format("metadata \"{}\" is {}{}, not {}", value.key, array ? "an array of " : "",
                    gguf_kind_name(value.element_kind), wanted),
        name);
  }

  template <typename T>
  T raw(const GgufValue& value, size_t index) const {
    T element;
    std::memcpy(&element, bytes.data() + value.offset + index * sizeof(T), sizeof(T));
    return element;
  }

  // One element converted to T, or nothing where it is of another kind or does not fit.
  template <typename T>
  std::optional<T> element(const GgufValue& value, size_t index) const;
};

namespace {

template <typename To, typename From>
std::optional<To> fitting(From value) {
  if constexpr (std::is_same_v<To, float>) {
    return static_cast<float>(value);
  } else {
    if (!std::in_range<To>(value)) return std::nullopt;
    return static_cast<To>(value);
  }
}

}  // namespace

template <typename T>
std::optional<T> GgufFile::State::element(const GgufValue& value, size_t index) const {
  if constexpr (std::is_same_v<T, bool>) {
    if (value.element_kind == GgufKind::kBool) return raw<uint8_t>(value, index) != 0;
  } else if constexpr (std::is_same_v<T, float>) {
    if (value.element_kind == GgufKind::kF32) return raw<float>(value, index);
    if (value.element_kind == GgufKind::kF64) return fitting<float>(raw<double>(value, index));
  } else {
    switch (value.element_kind) {
      case GgufKind::kU8: return fitting<T>(raw<uint8_t>(value, index));
      case GgufKind::kI8: return fitting<T>(raw<int8_t>(value, index));
      case GgufKind::kU16: return fitting<T>(raw<uint16_t>(value, index));
      case GgufKind::kI16: return fitting<T>(raw<int16_t>(value, index));
      case GgufKind::kU32: return fitting<T>(raw<uint32_t>(value, index));
      case GgufKind::kI32: return fitting<T>(raw<int32_t>(value, index));
      case GgufKind::kU64: return fitting<T>(raw<uint64_t>(value, index));
      case GgufKind::kI64: return fitting<T>(raw<int64_t>(value, index));
      default: break;
    }
  }
  return std::nullopt;
}

namespace {

// Both work on State, which is private, hence templates.
template <typename T, typename State>
std::optional<T> scalar(const State& state, std::string_view key, std::string_view wanted) {
  const GgufValue* value = state.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind == GgufKind::kArray) state.fail(*value, wanted);
  const std::optional<T> element = state.template element<T>(*value, 0);
  if (!element) state.fail(*value, wanted);
  return element;
}

template <typename T, typename State>
std::optional<std::vector<T>> array(const State& state, std::string_view key,
                                    std::string_view wanted) {
  const GgufValue* value = state.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != GgufKind::kArray) state.fail(*value, wanted);
  std::vector<T> elements;
  elements.reserve(value->count);
  for (size_t i = 0; i < value->count; ++i) {
    const std::optional<T> element = state.template element<T>(*value, i);
    if (!element) state.fail(*value, wanted);
    elements.push_back(*element);
  }
  return elements;
}

template <typename T>
T required(std::optional<T> value, std::string_view key, const std::string& name) {
  if (!value) throw Error(fmt::format("has no metadata \"{}\"", key), name);
  return *std::move(value);
}

}  // namespace

GgufFile GgufFile::open(const std::filesystem::path& path) {
  const auto mapping = MappedFile::open(path);
  auto state = std::make_shared<State>();
  state->name = path.string();
  state->bytes = mapping->bytes();
  state->owner = mapping;
  state->parse();
  return GgufFile(std::move(state));
}

GgufFile GgufFile::open(std::span<const std::byte> bytes, const std::string& name) {
  auto state = std::make_shared<State>();
  state->name = name;
  state->bytes = bytes;
  state->parse();
  return GgufFile(std::move(state));
}

uint32_t GgufFile::version() const { return state_->contents.version; }
const std::string& GgufFile::name() const { return state_->name; }
const std::vector<GgufTensor>& GgufFile::tensors() const& { return state_->contents.tensors; }

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> keys;
  for (const GgufValue& value : state_->contents.values) keys.push_back(value.key);
  return keys;
}

bool GgufFile::has(std::string_view key) const { return state_->find(key) != nullptr; }

std::optional<GgufKind> GgufFile::kind(std::string_view key) const {
  const GgufValue* value = state_->find(key);
  return value == nullptr ? std::nullopt : std::optional(value->kind);
}

size_t GgufFile::array_length(std::string_view key) const {
  const GgufValue* value = state_->find(key);
  return value != nullptr && value->kind == GgufKind::kArray ? value->count : 0;
}

std::span<const std::byte> GgufFile::value_bytes(std::string_view key) const {
  const GgufValue* value = state_->find(key);
  GRAFT_CHECK(value != nullptr, "no metadata \"{}\"", key);
  return state_->bytes.subspan(value->begin, value->end - value->begin);
}

std::string GgufFile::describe(std::string_view key) const {
  const GgufValue* value = state_->find(key);
  if (value == nullptr) return "";
  switch (value->kind) {
    case GgufKind::kArray:
      return fmt::format("{} of {}", value->count, gguf_kind_name(value->element_kind));
    case GgufKind::kString: return get_string(key);
    case GgufKind::kBool: return get_bool(key) ? "true" : "false";
    case GgufKind::kF32: return fmt::format("{}", get_f32(key));
    case GgufKind::kF64: return fmt::format("{}", state_->raw<double>(*value, 0));
    case GgufKind::kU64: return fmt::format("{}", state_->raw<uint64_t>(*value, 0));
    default: return fmt::format("{}", get_i64(key));
  }
}

std::optional<std::string> GgufFile::find_string(std::string_view key) const {
  const GgufValue* value = state_->find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != GgufKind::kString) state_->fail(*value, "a string");
  size_t offset = value->offset;
  return std::string(internal::gguf_string_at(state_->bytes, offset));
}

std::optional<std::vector<std::string>> GgufFile::find_strings(std::string_view key) const {
  const GgufValue* value = state_->find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != GgufKind::kArray || value->element_kind != GgufKind::kString) {
    state_->fail(*value, "an array of strings");
  }
  std::vector<std::string> strings;
  strings.reserve(value->count);
  size_t offset = value->offset;
  for (size_t i = 0; i < value->count; ++i) {
    strings.emplace_back(internal::gguf_string_at(state_->bytes, offset));
  }
  return strings;
}

std::optional<int64_t> GgufFile::find_i64(std::string_view key) const {
  return scalar<int64_t>(*state_, key, "a whole number");
}
std::optional<uint32_t> GgufFile::find_u32(std::string_view key) const {
  return scalar<uint32_t>(*state_, key, "a whole number from 0 to 2^32 - 1");
}
std::optional<float> GgufFile::find_f32(std::string_view key) const {
  return scalar<float>(*state_, key, "a number with a fraction");
}
std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  return scalar<bool>(*state_, key, "a bool");
}
std::optional<std::vector<int32_t>> GgufFile::find_i32s(std::string_view key) const {
  return array<int32_t>(*state_, key, "an array of 32-bit integers");
}
std::optional<std::vector<float>> GgufFile::find_f32s(std::string_view key) const {
  return array<float>(*state_, key, "an array of f32");
}
std::optional<std::vector<bool>> GgufFile::find_bools(std::string_view key) const {
  return array<bool>(*state_, key, "an array of bool");
}

std::string GgufFile::get_string(std::string_view key) const {
  return required(find_string(key), key, name());
}
int64_t GgufFile::get_i64(std::string_view key) const {
  return required(find_i64(key), key, name());
}
uint32_t GgufFile::get_u32(std::string_view key) const {
  return required(find_u32(key), key, name());
}
float GgufFile::get_f32(std::string_view key) const { return required(find_f32(key), key, name()); }
bool GgufFile::get_bool(std::string_view key) const {
  return required(find_bool(key), key, name());
}
std::vector<std::string> GgufFile::get_strings(std::string_view key) const {
  return required(find_strings(key), key, name());
}
std::vector<int32_t> GgufFile::get_i32s(std::string_view key) const {
  return required(find_i32s(key), key, name());
}
std::vector<float> GgufFile::get_f32s(std::string_view key) const {
  return required(find_f32s(key), key, name());
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = state_->tensors.find(name);
  return found == state_->tensors.end() ? nullptr : found->second;
}

const GgufTensor& GgufFile::tensor(std::string_view name) const {
  const GgufTensor* tensor = find(name);
  if (tensor == nullptr) throw Error(fmt::format("has no tensor \"{}\"", name), state_->name);
  return *tensor;
}

std::span<const std::byte> GgufFile::bytes(const GgufTensor& tensor) const {
  return state_->bytes.subspan(tensor.offset, tensor.size);
}

Tensor GgufFile::blocks(const GgufTensor& tensor) const {
  return Tensor::borrow(DType::kU8, {tensor.rows(), static_cast<int64_t>(tensor.row_bytes())},
                        bytes(tensor).data(), state_->owner);
}

Tensor GgufFile::dequantize(const GgufTensor& tensor) const {
  Tensor values = Tensor::empty(DType::kF32, tensor.shape);
  dequantize_rows(tensor, 0, tensor.rows(), values.data<float>());
  return values;
}

void GgufFile::dequantize_rows(const GgufTensor& tensor, int64_t begin, int64_t end,
                               float* values) const {
  GRAFT_CHECK(0 <= begin && begin <= end && end <= tensor.rows());
  if (!tensor.info().expandable) {
    throw Error(fmt::format("tensor \"{}\" has type {}, which is not supported", tensor.name,
                            tensor.info().name),
                state_->name, "use a file with a type such as Q8_0, Q4_K, Q6_K or F16");
  }
  if (tensor.size == 0) return;
  const size_t row = tensor.row_bytes();
  const auto count = static_cast<size_t>(end - begin);
  dequantize_blocks(tensor.type,
                    bytes(tensor).subspan(static_cast<size_t>(begin) * row, count * row),
                    {values, count * static_cast<size_t>(tensor.columns())});
}

}  // namespace graft
