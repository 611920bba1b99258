#include "pjrt/plugin.h"

#include <dlfcn.h>
#include <pjrt_c_api.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "formats/sha256.h"
#include "pjrt/named_values.h"

namespace graft::pjrt {
namespace {

// Plugins of this minor version and later have everything that a run needs (compiled memory
// statistics, topologies, serialised executables).
constexpr int kOldestMinor = 60;

std::string extension_name(int type) {
  static constexpr const char* kNames[] = {"GpuCustomCall",
                                           "Profiler",
                                           "CustomPartitioner",
                                           "Stream",
                                           "Layouts",
                                           "FFI",
                                           "MemoryDescriptions",
                                           "Triton",
                                           "RawBuffer",
                                           "PhaseCompile",
                                           "Example",
                                           "Unknown",
                                           "CrossHostTransfers",
                                           "ExecutableMetadata",
                                           "Callback",
                                           "HostAllocator"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : fmt::format("type {}", type);
}

std::string last_loader_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "unknown reason" : text;
}

}  // namespace

std::shared_ptr<const Plugin> Plugin::load(const std::filesystem::path& path) {
  // A library is initialised once; unloading XLA is not supported by anybody, so neither is it
  // here.
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Plugin>> loaded;
  const std::lock_guard lock(mutex);
  std::error_code ignored;
  std::string key = std::filesystem::canonical(path, ignored).string();
  if (key.empty()) {
    throw Error("there is no such file", path.string(),
                "graft plugins list tells which plugins are installed");
  }
  auto& slot = loaded[key];
  if (!slot) slot = std::shared_ptr<const Plugin>(new Plugin(key));
  return slot;
}

Plugin::Plugin(std::filesystem::path path) : path_(std::move(path)) {
  void* library = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(fmt::format("it does not load: {}", last_loader_error()), path_.string());
  }
  using GetApi = const PJRT_Api* (*)();
  const auto get_api = reinterpret_cast<GetApi>(::dlsym(library, "GetPjrtApi"));
  const PJRT_Api* api = get_api == nullptr ? nullptr : get_api();
  if (api == nullptr) {
    throw Error("it is no PJRT plugin: it has no function GetPjrtApi", path_.string());
  }
  api_major_ = api->pjrt_api_version.major_version;
  api_minor_ = api->pjrt_api_version.minor_version;
  if (api_major_ != PJRT_API_MAJOR || api_minor_ < kOldestMinor) {
    throw Error(fmt::format("its PJRT interface is {}.{}; graft drives {}.{} and later minors",
                            api_major_, api_minor_, PJRT_API_MAJOR, kOldestMinor),
                path_.string(), "install another with graft plugins install");
  }
  table_ = std::make_unique<PJRT_Api>();
  std::memcpy(table_.get(), api, std::min(sizeof(PJRT_Api), api->struct_size));
  api_ = table_.get();
  for (const auto* e = api_->extension_start; e != nullptr; e = e->next) {
    extensions_.push_back(extension_name(static_cast<int>(e->type)));
  }
  std::sort(extensions_.begin(), extensions_.end());
  GRAFT_PJRT_ARGS(PJRT_Plugin_Initialize_Args, initialize);
  call(api_->PJRT_Plugin_Initialize, initialize, "initialising the plugin");
  GRAFT_PJRT_ARGS(PJRT_Plugin_Attributes_Args, attributes);
  call(api_->PJRT_Plugin_Attributes, attributes, "asking the plugin what it is");
  attributes_ = read_named_values({attributes.attributes, attributes.num_attributes});
}

void Plugin::check(PJRT_Error* error, std::string_view doing) const {
  if (error == nullptr) return;
  GRAFT_PJRT_ARGS(PJRT_Error_Message_Args, message);
  message.error = error;
  api_->PJRT_Error_Message(&message);
  std::string text(message.message, message.message_size);
  GRAFT_PJRT_ARGS(PJRT_Error_GetCode_Args, code);
  code.error = error;
  const bool known = api_->PJRT_Error_GetCode(&code) == nullptr;
  GRAFT_PJRT_ARGS(PJRT_Error_Destroy_Args, destroy);
  destroy.error = error;
  api_->PJRT_Error_Destroy(&destroy);
  const bool memory = known && code.code == PJRT_Error_Code_RESOURCE_EXHAUSTED;
  throw Error(fmt::format("{}: {}", doing, text), path_.filename().string(),
              memory ? "make the batch or max_length smaller, or the mesh larger" : "");
}

void Plugin::raise_absent(std::string_view doing) const {
  throw Error(fmt::format("{}: the plugin's PJRT interface {}.{} has no such function", doing,
                          api_major_, api_minor_),
              path_.string());
}

std::string Plugin::sha256() const {
  static std::mutex mutex;
  static std::map<std::filesystem::path, std::string> known;
  const std::lock_guard lock(mutex);
  std::string& digest = known[path_];
  if (digest.empty()) digest = sha256_file(path_);
  return digest;
}

}  // namespace graft::pjrt
