#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "formats/json.h"

namespace graft {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr size_t kLengthBytes = 8;
constexpr size_t kHeaderLimit = 100'000'000;  // the reference library's
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr const char* kDownloadAgain = "the file is damaged or incomplete: download it again";

struct TypeInfo {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;
};

// Every type of the format.
constexpr std::array kTypes = {
    TypeInfo{"BOOL", 8, DType::kBool},
    TypeInfo{"U8", 8, DType::kU8},
    TypeInfo{"I8", 8, DType::kS8},
    TypeInfo{"U32", 32, DType::kU32},
    TypeInfo{"I32", 32, DType::kS32},
    TypeInfo{"I64", 64, DType::kS64},
    TypeInfo{"F8_E4M3", 8, DType::kF8E4M3FN},
    TypeInfo{"F8_E5M2", 8, DType::kF8E5M2},
    TypeInfo{"F8_E4M3FNUZ", 8, DType::kF8E4M3FNUZ},
    TypeInfo{"F8_E5M2FNUZ", 8, DType::kF8E5M2FNUZ},
    TypeInfo{"F16", 16, DType::kF16},
    TypeInfo{"BF16", 16, DType::kBF16},
    TypeInfo{"F32", 32, DType::kF32},
    TypeInfo{"F64", 64, DType::kF64},
    TypeInfo{"U16", 16, std::nullopt},
    TypeInfo{"I16", 16, std::nullopt},
    TypeInfo{"U64", 64, std::nullopt},
    TypeInfo{"C64", 64, std::nullopt},
    TypeInfo{"F8_E8M0", 8, std::nullopt},
    TypeInfo{"F6_E2M3", 6, std::nullopt},
    TypeInfo{"F6_E3M2", 6, std::nullopt},
    TypeInfo{"F4", 4, std::nullopt},
};

const TypeInfo* find_type(std::string_view name) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [=](const TypeInfo& each) { return each.name == name; });
  return found == kTypes.end() ? nullptr : found;
}

// One file's header being read; gives entries whose ranges are proven.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes), name_(name) {}

  void read() {
    const std::string_view text = header_text();
    data_start_ = kLengthBytes + text.size();
    const json header = parse_json(text, name_ + " (header)");
    for (const auto& item : header.items()) {
      if (item.key() == kMetadataKey) {
        read_metadata(item.value());
      } else {
        entries_.push_back(read_entry(item.key(), item.value()));
      }
    }
    check_coverage();
  }

  std::vector<SafetensorsEntry> entries() { return std::move(entries_); }
  SafetensorsMetadata metadata() { return std::move(metadata_); }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(problem, name_, kDownloadAgain);
  }
  [[noreturn]] void fail(std::string_view tensor, const std::string& problem) const {
    fail(fmt::format("tensor \"{}\" {}", tensor, problem));
  }

  std::string_view header_text() const {
    if (bytes_.size() < kLengthBytes) {
      fail(fmt::format("is no safetensors file: it has {} bytes", bytes_.size()));
    }
    uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), kLengthBytes);
    if (length > kHeaderLimit) {
      fail(fmt::format("is no safetensors file: its header would have {} bytes", length));
    }
    if (length > bytes_.size() - kLengthBytes) {
      fail(
          fmt::format("is truncated: the header has {} bytes, the file {}", length, bytes_.size()));
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes,
                                length);
    if (!text.starts_with('{')) fail("is no safetensors file: its header is not a JSON object");
    return text;
  }

  void read_metadata(const json& value) {
    if (!value.is_object()) fail("__metadata__ is not a JSON object");
    for (const auto& item : value.items()) {
      if (!item.value().is_string()) {
        fail(fmt::format("__metadata__: \"{}\" is not a string", item.key()));
      }
      metadata_[item.key()] = item.value().get<std::string>();
    }
  }

  uint64_t whole_number(std::string_view tensor, std::string_view what, const json& value) const {
    // The parser types every whole number that is not negative as unsigned.
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) {
      fail(tensor, fmt::format("has a {} that is not a whole number from 0 to 2^63 - 1", what));
    }
    return value.get<uint64_t>();
  }

  SafetensorsEntry read_entry(const std::string& name, const json& value) const {
    if (!value.is_object()) fail(name, "is not described by a JSON object");
    for (const auto& item : value.items()) {
      if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets") {
        fail(name, fmt::format("has the field \"{}\", which the format does not", item.key()));
      }
    }
    if (value.size() != 3) fail(name, "lacks one of dtype, shape and data_offsets");
    SafetensorsEntry entry;
    entry.name = name;
    const TypeInfo& type = read_type(entry, value["dtype"]);
    read_shape(entry, value["shape"]);
    read_range(entry, value["data_offsets"], type);
    return entry;
  }

  const TypeInfo& read_type(SafetensorsEntry& entry, const json& value) const {
    if (!value.is_string()) fail(entry.name, "has a dtype that is not a string");
    entry.type = value.get<std::string>();
    const TypeInfo* type = find_type(entry.type);
    if (type == nullptr) {
      fail(entry.name, fmt::format("has the unknown dtype \"{}\"", entry.type));
    }
    entry.dtype = type->dtype;
    return *type;
  }

  void read_shape(SafetensorsEntry& entry, const json& value) const {
    if (!value.is_array()) fail(entry.name, "has a shape that is not a list");
    for (const json& extent : value) {
      entry.shape.push_back(static_cast<int64_t>(whole_number(entry.name, "shape", extent)));
    }
  }

  void read_range(SafetensorsEntry& entry, const json& value, const TypeInfo& type) const {
    if (!value.is_array() || value.size() != 2) {
      fail(entry.name, "has data_offsets that are not a list of two");
    }
    const uint64_t begin = whole_number(entry.name, "data_offset", value[0]);
    const uint64_t end = whole_number(entry.name, "data_offset", value[1]);
    const uint64_t available = bytes_.size() - data_start_;
    if (begin > end) fail(entry.name, fmt::format("ends at {} before it begins at {}", end, begin));
    if (end > available) {
      fail(entry.name,
           fmt::format("ends at byte {} of the data, of which the file has {}", end, available));
    }
    if (end - begin != expected_size(entry, type)) {
      fail(entry.name,
           fmt::format("of type {} and shape {} has {} bytes, not {}", entry.type,
                       to_string(entry.shape), end - begin, expected_size(entry, type)));
    }
    entry.offset = data_start_ + begin;
    entry.size = end - begin;
  }

  uint64_t expected_size(const SafetensorsEntry& entry, const TypeInfo& type) const {
    uint64_t bits = type.bits;
    bool empty = false;
    for (const int64_t extent : entry.shape) {
      empty = empty || extent == 0;
      if (extent != 0 && __builtin_mul_overflow(bits, static_cast<uint64_t>(extent), &bits)) {
        fail(entry.name, fmt::format("has an impossible shape {}", to_string(entry.shape)));
      }
    }
    if (empty) return 0;
    if (bits % 8 != 0) {
      fail(entry.name, fmt::format("of type {} and shape {} does not fill whole bytes", entry.type,
                                   to_string(entry.shape)));
    }
    return bits / 8;
  }

  // Sorts by place, and proves that the ranges follow each other without hole or overlap to the
  // end.
  void check_coverage() {
    std::sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return std::tie(a.offset, a.size, a.name) < std::tie(b.offset, b.size, b.name);
    });
    size_t covered = data_start_;
    std::string_view previous;
    for (const SafetensorsEntry& entry : entries_) {
      if (entry.offset < covered) {
        fail(entry.name, fmt::format("overlaps tensor \"{}\"", previous));
      }
      if (entry.offset > covered) {
        fail(entry.name, fmt::format("leaves {} bytes unused before it", entry.offset - covered));
      }
      covered += entry.size;
      previous = entry.name;
    }
    if (covered != bytes_.size()) {
      fail(fmt::format("has {} bytes after its last tensor", bytes_.size() - covered));
    }
  }

  std::span<const std::byte> bytes_;
  std::string name_;
  size_t data_start_ = 0;
  std::vector<SafetensorsEntry> entries_;
  SafetensorsMetadata metadata_;
};

fs::path resolve(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(path / name)) return path / name;
  }
  throw Error("holds neither model.safetensors nor model.safetensors.index.json", path.string(),
              "give the folder of a model in safetensors form");
}

// The index of a sharded model: which file holds which tensor.
std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  const json document = read_json_file(path);
  const JsonObject weight_map = JsonObject(document, path.string()).required_object("weight_map");
  std::map<std::string, std::string> files;
  for (const std::string& tensor : weight_map.keys()) {
    const auto file = weight_map.required<std::string>(tensor);
    if (file.empty() || file == "." || file == ".." || fs::path(file).filename() != file) {
      weight_map.fail(tensor, fmt::format("\"{}\" is not the name of a file in this folder", file));
    }
    files[tensor] = file;
  }
  return files;
}

}  // namespace

std::string_view safetensors_type_name(DType dtype) {
  for (const TypeInfo& each : kTypes) {
    if (each.dtype == dtype) return each.name;
  }
  return {};
}

std::optional<DType> dtype_from_safetensors(std::string_view type) {
  const TypeInfo* found = find_type(type);
  return found == nullptr ? std::nullopt : found->dtype;
}

struct SafetensorsFile::State {
  std::vector<fs::path> files;
  std::vector<std::span<const std::byte>> bytes;    // of each file
  std::vector<std::shared_ptr<const void>> owners;  // what keeps them alive
  std::vector<SafetensorsEntry> entries;
  std::vector<std::string> names;
  std::unordered_map<std::string_view, size_t> index;  // of names, into entries
  SafetensorsMetadata metadata;

  void add_file(const fs::path& path, std::span<const std::byte> contents,
                std::shared_ptr<const void> owner) {
    HeaderReader reader(contents, path.string());
    reader.read();
    for (SafetensorsEntry& entry : reader.entries()) {
      entry.file = files.size();
      entries.push_back(std::move(entry));
    }
    metadata = reader.metadata();
    files.push_back(path);
    bytes.push_back(contents);
    owners.push_back(std::move(owner));
  }

  void add_file(const fs::path& path) {
    const auto mapping = MappedFile::open(path);
    add_file(path, mapping->bytes(), mapping);
  }

  // Once, after the last file: the views point into `names`, which must not grow any more.
  void build_index() {
    for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
    for (size_t i = 0; i < names.size(); ++i) {
      if (!index.emplace(names[i], i).second) {
        throw Error(fmt::format("tensor \"{}\" is in another file of the model too", names[i]),
                    files[entries[i].file].string());
      }
    }
  }
};

SafetensorsFile SafetensorsFile::open(const fs::path& path) {
  const fs::path file = resolve(path);
  auto state = std::make_shared<State>();
  if (file.extension() != ".json") {
    state->add_file(file);
    state->build_index();
    return SafetensorsFile(std::move(state));
  }
  const auto weight_map = read_weight_map(file);
  std::vector<std::string> shards;
  for (const auto& [tensor, shard] : weight_map) shards.push_back(shard);
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  for (const std::string& shard : shards) state->add_file(file.parent_path() / shard);
  state->metadata.clear();
  state->build_index();
  for (const auto& [tensor, shard] : weight_map) {
    const auto found = state->index.find(tensor);
    if (found == state->index.end() ||
        state->files[state->entries[found->second].file].filename() != shard) {
      throw Error(fmt::format("tensor \"{}\" is not in {}", tensor, shard), file.string(),
                  "the index belongs to other files: download the model again");
    }
  }
  for (const SafetensorsEntry& entry : state->entries) {
    if (!weight_map.contains(entry.name)) {
      throw Error(fmt::format("tensor \"{}\" of {} is not in the index", entry.name,
                              state->files[entry.file].filename().string()),
                  file.string(), "the index belongs to other files: download the model again");
    }
  }
  return SafetensorsFile(std::move(state));
}

SafetensorsFile SafetensorsFile::open(std::span<const std::byte> bytes, const std::string& name) {
  auto state = std::make_shared<State>();
  state->add_file(name, bytes, nullptr);
  state->build_index();
  return SafetensorsFile(std::move(state));
}

const std::vector<std::string>& SafetensorsFile::names() const& { return state_->names; }
const SafetensorsMetadata& SafetensorsFile::metadata() const { return state_->metadata; }
const std::vector<fs::path>& SafetensorsFile::files() const { return state_->files; }

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = state_->index.find(name);
  return found == state_->index.end() ? nullptr : &state_->entries[found->second];
}

const SafetensorsEntry& SafetensorsFile::get(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) {
    throw Error(fmt::format("has no tensor \"{}\"", name), state_->files[0].string());
  }
  return *entry;
}

std::span<const std::byte> SafetensorsFile::bytes(std::string_view name) const {
  const SafetensorsEntry& entry = get(name);
  return state_->bytes[entry.file].subspan(entry.offset, entry.size);
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsEntry& entry = get(name);
  const std::string where = state_->files[entry.file].string();
  if (!entry.dtype) {
    throw Error(
        fmt::format("tensor \"{}\" has type {}, which graft does not use", name, entry.type),
        where);
  }
  const std::span<const std::byte> contents = bytes(name);
  if (entry.dtype == DType::kBool &&
      std::any_of(contents.begin(), contents.end(), [](std::byte b) { return b > std::byte{1}; })) {
    throw Error(
        fmt::format("tensor \"{}\" of type BOOL holds a byte that is neither 0 nor 1", name),
        where);
  }
  const Tensor view =
      Tensor::borrow(*entry.dtype, entry.shape, contents.data(), state_->owners[entry.file]);
  const auto element_bytes = static_cast<uintptr_t>(dtype_bits(*entry.dtype) / 8);
  return reinterpret_cast<uintptr_t>(contents.data()) % element_bytes == 0 ? view : view.clone();
}

}  // namespace graft
