#include "checkpoint/base_identity.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/disk.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"
#include "models/config.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Below this a file is hashed faster than a cache is worth.
constexpr uintmax_t kCachedFrom = 64'000'000;
constexpr size_t kChunk = size_t{1} << 20;

struct Range {
  std::string name;  // of the tensor
  size_t offset = 0, size = 0;
};

// One file of a model: its header is all before `data`.
struct BaseFile {
  fs::path path;
  size_t data = 0;
  std::vector<Range> tensors;
};

struct Base {
  BaseIdentity identity;  // without checksums
  std::vector<BaseFile> files;
};

Base open_gguf(const fs::path& path) {
  const GgufFile gguf = GgufFile::open(path);
  Base base;
  BaseFile file{path, static_cast<size_t>(fs::file_size(path)), {}};
  for (const GgufTensor& t : gguf.tensors()) {
    base.identity.tensors[t.name] = {std::string(t.info().name), t.shape, ""};
    file.tensors.push_back({t.name, t.offset, t.size});
    file.data = std::min(file.data, t.offset);
  }
  base.files.push_back(std::move(file));
  return base;
}

Base open_folder(const fs::path& path) {
  const SafetensorsFile weights = SafetensorsFile::open(path);
  Base base;
  for (const fs::path& file : weights.files()) {
    base.files.push_back({file, static_cast<size_t>(fs::file_size(file)), {}});
  }
  for (const std::string& name : weights.names()) {
    const SafetensorsEntry& entry = *weights.find(name);
    base.identity.tensors[name] = {entry.type, entry.shape, ""};
    BaseFile& file = base.files[entry.file];
    file.tensors.push_back({name, entry.offset, entry.size});
    file.data = std::min(file.data, entry.offset);
  }
  if (fs::exists(path / "config.json")) {
    base.identity.config_sha256 = sha256_file(path / "config.json");
  }
  return base;
}

// Reads through a small buffer rather than a mapping, whose pages would count as this process's.
class Reader {
 public:
  Reader(const fs::path& path, const std::atomic<bool>& cancelled)
      : path_(path),
        cancelled_(cancelled),
        fd_(disk::open_retrying(path.c_str(), O_RDONLY)),
        buffer_(kChunk) {
    if (fd_.get() < 0) disk::fail("cannot open", path, errno);
  }

  void read(size_t offset, size_t size, Sha256& hash) {
    while (size > 0) {
      if (cancelled_) throw Error("reading was cancelled", path_.string());
      const ssize_t count =
          ::pread(fd_.get(), buffer_.data(), std::min(size, kChunk), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) disk::fail("cannot read", path_, errno);
      if (count == 0) throw Error("the file was cut short while it was read", path_.string());
      hash.update(std::span(buffer_).first(static_cast<size_t>(count)));
      offset += static_cast<size_t>(count);
      size -= static_cast<size_t>(count);
    }
  }

 private:
  fs::path path_;
  const std::atomic<bool>& cancelled_;
  disk::Descriptor fd_;
  std::vector<std::byte> buffer_;
};

void hash_header(const BaseFile& file, Sha256& headers, const std::atomic<bool>& cancelled) {
  Reader(file.path, cancelled).read(0, file.data, headers);
}

// ---- The cache: one JSON file for each base file, by the hash of its path

fs::path cache_folder() {
  if (const char* place = std::getenv("XDG_CACHE_HOME"); place != nullptr && *place == '/') {
    return fs::path(place) / "graft" / "checksums";
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? fs::path(home) / ".cache" / "graft" / "checksums"
                                         : fs::path();
}

struct Stamp {
  std::string path;
  int64_t size = 0, seconds = 0, nanoseconds = 0;
};

std::optional<Stamp> stamp_of(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::canonical(path, error);
  struct stat status {};
  if (error || ::stat(absolute.c_str(), &status) != 0) return std::nullopt;
  return Stamp{absolute.string(), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

Json stamp_json(const Stamp& stamp) {
  return {stamp.path, stamp.size, stamp.seconds, stamp.nanoseconds};
}

fs::path cache_file(const Stamp& stamp) {
  return cache_folder() / (sha256_hex(std::as_bytes(std::span(stamp.path))) + ".json");
}

// Tensor to checksum; nothing unless the file is as it was then.
std::optional<std::map<std::string, std::string>> cached_checksums(const Stamp& stamp) {
  try {
    const nlohmann::json document = read_json_file(cache_file(stamp));
    if (document.at("file") != nlohmann::json(stamp_json(stamp))) return std::nullopt;
    return document.at("tensors").get<std::map<std::string, std::string>>();
  } catch (const std::exception&) {
    return std::nullopt;  // a cache may be missing, stale or broken: then the file is read
  }
}

void store_checksums(const Stamp& stamp, const std::map<std::string, std::string>& checksums) {
  try {
    make_directories(cache_folder());
    const Json document = {{"file", stamp_json(stamp)}, {"tensors", checksums}};
    write_file_atomically(cache_file(stamp), document.dump(1) + "\n");
  } catch (const Error&) {
    // Without a cache the file is read again next time.
  }
}

std::map<std::string, std::string> checksums_of(const BaseFile& file,
                                                const std::atomic<bool>& cancelled) {
  const std::optional<Stamp> stamp =
      fs::file_size(file.path) >= kCachedFrom ? stamp_of(file.path) : std::nullopt;
  if (stamp) {
    if (auto known = cached_checksums(*stamp); known && known->size() == file.tensors.size()) {
      return *std::move(known);
    }
  }
  std::map<std::string, std::string> checksums;
  Reader reader(file.path, cancelled);
  for (const Range& tensor : file.tensors) {
    Sha256 hash;
    reader.read(tensor.offset, tensor.size, hash);
    checksums[tensor.name] = hash.hex();
  }
  if (stamp) store_checksums(*stamp, checksums);
  return checksums;
}

Base open_base(const fs::path& model, const std::atomic<bool>& cancelled) {
  Base base = is_gguf(model) ? open_gguf(model) : open_folder(model);
  base.identity.path = model.string();
  Sha256 headers;
  for (const BaseFile& file : base.files) hash_header(file, headers, cancelled);
  base.identity.header_sha256 = headers.hex();
  return base;
}

}  // namespace

BaseIdentity base_outline(const fs::path& model) {
  const std::atomic<bool> never = false;
  return open_base(model, never).identity;
}

BaseIdentity base_identity(const fs::path& model, const std::atomic<bool>& cancelled) {
  Base base = open_base(model, cancelled);
  for (const BaseFile& file : base.files) {
    for (const auto& [name, checksum] : checksums_of(file, cancelled)) {
      base.identity.tensors[name].sha256 = checksum;
    }
  }
  return std::move(base.identity);
}

std::string format_base_identity(const BaseIdentity& identity) {
  Json tensors = Json::object();
  for (const auto& [name, t] : identity.tensors) {
    tensors[name] = {{"type", t.type}, {"shape", t.shape}, {"sha256", t.sha256}};
  }
  const Json document = {{"path", identity.path},
                         {"header_sha256", identity.header_sha256},
                         {"config_sha256", identity.config_sha256},
                         {"tensors", std::move(tensors)}};
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

BaseIdentity parse_base_identity(std::string_view text, const std::string& name) {
  const nlohmann::json document = parse_json(text, name);
  const JsonObject root(document, name);
  BaseIdentity identity;
  identity.path = root.required<std::string>("path");
  identity.header_sha256 = root.required<std::string>("header_sha256");
  identity.config_sha256 = root.required<std::string>("config_sha256");
  const JsonObject tensors = root.required_object("tensors");
  for (const std::string& key : tensors.keys()) {
    const JsonObject t = tensors.required_object(key);
    identity.tensors[key] = {t.required<std::string>("type"),
                             t.required<std::vector<int64_t>>("shape"),
                             t.required<std::string>("sha256")};
  }
  return identity;
}

std::vector<std::string> base_differences(const BaseIdentity& expected, const BaseIdentity& found) {
  std::vector<std::string> lines;
  for (const auto& [name, was] : expected.tensors) {
    const auto it = found.tensors.find(name);
    if (it == found.tensors.end()) {
      lines.push_back(fmt::format("{} is missing", name));
      continue;
    }
    const BaseTensorIdentity& is = it->second;
    if (was.shape != is.shape) {
      lines.push_back(
          fmt::format("{} has shape {}, not {}", name, to_string(is.shape), to_string(was.shape)));
    } else if (was.type != is.type) {
      lines.push_back(fmt::format("{} is stored as {}, not {}", name, is.type, was.type));
    } else if (!was.sha256.empty() && !is.sha256.empty() && was.sha256 != is.sha256) {
      lines.push_back(fmt::format("{} has other values", name));
    }
  }
  for (const auto& [name, is] : found.tensors) {
    if (!expected.tensors.contains(name)) lines.push_back(fmt::format("{} is new", name));
  }
  if (expected.config_sha256 != found.config_sha256) lines.push_back("config.json differs");
  return lines;
}

void lower_thread_priority() {
  // On Linux a thread has a priority of its own, under its own number. At 10 it gets a tenth of a
  // core that others want too: enough to end within seconds.
  [[maybe_unused]] const int ignored =
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10);
}

BaseIdentityTask::BaseIdentityTask(fs::path model)
    : result_(std::async(std::launch::async, [this, model = std::move(model)] {
                lower_thread_priority();
                return base_identity(model, cancelled_);
              }).share()) {}

BaseIdentityTask::~BaseIdentityTask() {
  cancelled_ = true;
  if (result_.valid()) result_.wait();
}

bool BaseIdentityTask::ready() const {
  return result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

const BaseIdentity& BaseIdentityTask::get() const { return result_.get(); }

}  // namespace graft
