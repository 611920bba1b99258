#include "formats/gguf_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "base/error.h"

namespace graft {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF data is little-endian");

struct KindInfo {
  std::string_view name;
  size_t size;
};

constexpr std::array<KindInfo, 13> kKinds = {{{"u8", 1},
                                              {"i8", 1},
                                              {"u16", 2},
                                              {"i16", 2},
                                              {"u32", 4},
                                              {"i32", 4},
                                              {"f32", 4},
                                              {"bool", 1},
                                              {"string", 0},
                                              {"array", 0},
                                              {"u64", 8},
                                              {"i64", 8},
                                              {"f64", 8}}};

}  // namespace

std::string_view gguf_kind_name(GgufKind kind) { return kKinds[static_cast<size_t>(kind)].name; }

namespace internal {
namespace {

constexpr const char* kDownloadAgain = "the file is damaged or incomplete: download it again";
constexpr uint32_t kMaxAxes = 4;
constexpr int kMaxArrayDepth = 4;
constexpr size_t kDefaultAlignment = 32;

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  GgufContents parse() {
    read_start();
    for (uint64_t i = 0; i < value_count_; ++i) read_value();
    for (uint64_t i = 0; i < tensor_count_; ++i) read_tensor_header();
    place_tensors();
    return std::move(contents_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem, const std::string& remedy = kDownloadAgain) {
    throw Error(problem, name_, remedy);
  }

  size_t left() const { return bytes_.size() - position_; }

  // `what` names the thing being read, for the error.
  void need(uint64_t size, std::string_view what) {
    if (size > left()) {
      fail(fmt::format("is truncated: {} at byte {} needs {} bytes, {} are left", what, position_,
                       size, left()));
    }
  }

  template <typename T>
  T read(std::string_view what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  std::string_view read_string(std::string_view what) {
    const auto length = read<uint64_t>(what);
    need(length, what);
    const auto* text = reinterpret_cast<const char*>(bytes_.data()) + position_;
    position_ += length;
    return {text, length};
  }

  void read_start() {
    need(4, "the file type");
    if (std::memcmp(bytes_.data(), "GGUF", 4) != 0) fail("is no GGUF file", "");
    position_ = 4;
    contents_.version = read<uint32_t>("the version");
    if (contents_.version != 2 && contents_.version != 3) {
      if (contents_.version == 0x02000000 || contents_.version == 0x03000000) {
        fail("is a big-endian GGUF file, which is not supported", "convert it to little-endian");
      }
      fail(fmt::format("is GGUF version {}; versions 2 and 3 are supported", contents_.version),
           "convert it with a current llama.cpp");
    }
    tensor_count_ = read<uint64_t>("the tensor count");
    value_count_ = read<uint64_t>("the metadata count");
    // The shortest possible entries: an empty name, no axes; an empty key and one byte.
    if (tensor_count_ > left() / 24 || value_count_ > left() / 13) {
      fail(fmt::format("is truncated: it names {} tensors and {} metadata values, and has {} bytes",
                       tensor_count_, value_count_, bytes_.size()));
    }
  }

  GgufKind read_kind(std::string_view key) {
    const auto number = read<uint32_t>(key);
    if (number >= kKinds.size()) {
      fail(fmt::format("metadata \"{}\" has the unknown kind {}", key, number));
    }
    return static_cast<GgufKind>(number);
  }

  void read_value() {
    GgufValue value;
    value.key = read_string("a metadata key");
    if (!keys_.insert(value.key).second) {
      fail(fmt::format("metadata \"{}\" is given twice", value.key));
    }
    value.kind = value.element_kind = read_kind(value.key);
    value.begin = position_;
    if (value.kind == GgufKind::kArray) {
      value.element_kind = read_kind(value.key);
      value.count = read<uint64_t>(value.key);
    }
    value.offset = position_;
    skip(value.key, value.element_kind, value.count, 0);
    value.end = position_;
    contents_.values.push_back(std::move(value));
  }

  // Moves past `count` elements, each proven to lie in the file.
  void skip(const std::string& key, GgufKind kind, uint64_t count, int depth) {
    const size_t size = gguf_kind_size(kind);
    if (size > 0) {
      if (count > left() / size) need(UINT64_MAX, fmt::format("metadata \"{}\"", key));
      if (kind == GgufKind::kBool) check_bools(key, count);
      position_ += count * size;
      return;
    }
    if (kind == GgufKind::kArray && depth >= kMaxArrayDepth) {
      fail(fmt::format("metadata \"{}\" nests arrays more than {} deep", key, kMaxArrayDepth));
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (kind == GgufKind::kString) {
        read_string(key);
      } else {
        const GgufKind inner = read_kind(key);
        skip(key, inner, read<uint64_t>(key), depth + 1);
      }
    }
  }

  void check_bools(const std::string& key, uint64_t count) {
    for (const std::byte b : bytes_.subspan(position_, count)) {
      if (b > std::byte{1}) fail(fmt::format("metadata \"{}\" holds a bool beyond 0 and 1", key));
    }
  }

  void read_tensor_header() {
    GgufTensor tensor;
    tensor.name = read_string("a tensor's name");
    if (!names_.insert(tensor.name).second) {
      fail(fmt::format("tensor \"{}\" is given twice", tensor.name));
    }
    const auto axes = read<uint32_t>(tensor.name);
    if (axes > kMaxAxes) {
      fail(fmt::format("tensor \"{}\" has {} axes; at most {} are possible", tensor.name, axes,
                       kMaxAxes));
    }
    for (uint32_t i = 0; i < axes; ++i) {
      const auto extent = read<uint64_t>(tensor.name);
      if (extent > INT64_MAX) {
        fail(fmt::format("tensor \"{}\" has the impossible extent {}", tensor.name, extent));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
    }
    const auto type = read<uint32_t>(tensor.name);
    if (ggml_type_info(type) == nullptr) {
      fail(fmt::format("tensor \"{}\" has the unknown type {}", tensor.name, type),
           "convert the model to a type such as Q8_0, Q4_K or F16");
    }
    tensor.type = static_cast<GgmlType>(type);
    tensor.offset = read<uint64_t>(tensor.name);  // from the start of the data, for now
    tensor.size = size_of(tensor);
    contents_.tensors.push_back(std::move(tensor));
  }

  size_t size_of(const GgufTensor& tensor) {
    const GgmlTypeInfo& info = tensor.info();
    const auto columns = static_cast<uint64_t>(tensor.columns());
    if (columns % info.block_values != 0) {
      fail(fmt::format("tensor \"{}\" has rows of {} values, not whole blocks of {} ({})",
                       tensor.name, columns, info.block_values, info.name));
    }
    // The blocks are counted as if no axis were empty, so that no product of some axes can
    // overflow.
    uint64_t size = info.block_bytes;
    bool overflow = __builtin_mul_overflow(size, std::max<uint64_t>(columns, 1), &size);
    bool empty = columns == 0;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
      const auto extent = static_cast<uint64_t>(tensor.shape[i]);
      empty = empty || extent == 0;
      overflow = overflow || __builtin_mul_overflow(size, std::max<uint64_t>(extent, 1), &size);
    }
    if (overflow || size > INT64_MAX) {
      fail(fmt::format("tensor \"{}\" has an impossible shape {}", tensor.name,
                       to_string(tensor.shape)));
    }
    return empty ? 0 : size / info.block_values;
  }

  size_t alignment() {
    for (const GgufValue& value : contents_.values) {
      if (value.key != "general.alignment") continue;
      uint32_t alignment = 0;
      if (value.kind == GgufKind::kU32) {
        std::memcpy(&alignment, bytes_.data() + value.offset, sizeof(alignment));
      }
      if (!std::has_single_bit(alignment)) {
        fail("metadata \"general.alignment\" is not a power of two in a u32");
      }
      return alignment;
    }
    return kDefaultAlignment;
  }

  // Turns offsets in the data into offsets in the file, inside it, aligned, and apart from each
  // other.
  void place_tensors() {
    const size_t unit = alignment();
    const size_t start = (position_ + unit - 1) / unit * unit;
    const size_t available = start > bytes_.size() ? 0 : bytes_.size() - start;
    for (GgufTensor& tensor : contents_.tensors) {
      if (tensor.offset % unit != 0) {
        fail(fmt::format("tensor \"{}\" begins at {}, not at a multiple of {}", tensor.name,
                         tensor.offset, unit));
      }
      if (tensor.offset > available || tensor.size > available - tensor.offset) {
        fail(
            fmt::format("tensor \"{}\" of {} bytes at {} ends beyond the data, of which the file "
                        "has {} bytes",
                        tensor.name, tensor.size, tensor.offset, available));
      }
      tensor.offset += start;
    }
    check_overlap();
  }

  void check_overlap() {
    std::vector<const GgufTensor*> sorted;
    for (const GgufTensor& tensor : contents_.tensors) {
      if (tensor.size > 0) sorted.push_back(&tensor);
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < sorted.size(); ++i) {
      if (sorted[i]->offset < sorted[i - 1]->offset + sorted[i - 1]->size) {
        fail(fmt::format("tensor \"{}\" overlaps tensor \"{}\"", sorted[i]->name,
                         sorted[i - 1]->name));
      }
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& name_;
  size_t position_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t value_count_ = 0;
  std::set<std::string> keys_, names_;
  GgufContents contents_;
};

}  // namespace

size_t gguf_kind_size(GgufKind kind) { return kKinds[static_cast<size_t>(kind)].size; }

std::string_view gguf_string_at(std::span<const std::byte> bytes, size_t& offset) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data() + offset, sizeof(length));
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + offset + sizeof(length);
  offset += sizeof(length) + length;
  return {text, length};
}

GgufContents parse_gguf(std::span<const std::byte> bytes, const std::string& name) {
  return Parser(bytes, name).parse();
}

}  // namespace internal
}  // namespace graft
