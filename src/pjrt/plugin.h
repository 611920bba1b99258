#pragma once
// PJRT plugins: shared libraries that bring XLA to one kind of device through a C interface.
//
// Loading opens the library, takes its table of functions, checks that the version can be driven
// and initialises it. Every call of the table goes through call(), which turns the plugin's errors
// into graft::Error with the plugin's own words.
//
//   auto plugin = pjrt::Plugin::load(pjrt::find_plugin("cpu"));
//   pjrt::Client client(plugin, {{"cpu_device_count", int64_t{8}}});   // pjrt/client.h
//
// Source: pjrt_c_api.h of XLA, which scripts/setup.sh fetches (docs/executors.md).

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"

struct PJRT_Api;
struct PJRT_Error;

namespace graft::pjrt {

// What a client, a topology or a plugin is told or tells, by name.
using Option = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;
using Options = std::map<std::string, Option>;

class Plugin {
 public:
  // Loads and initialises the library once a process; the same path gives the same plugin. Raises
  // Error where the file is no plugin, or one whose interface is too old.
  static std::shared_ptr<const Plugin> load(const std::filesystem::path& path);
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int api_major() const { return api_major_; }
  int api_minor() const { return api_minor_; }
  const std::vector<std::string>& extensions() const { return extensions_; }  // "Layouts", "FFI"
  const Options& attributes() const { return attributes_; }  // "xla_version", "stablehlo_..."
  std::string sha256() const;                                // of the file, computed once

  const PJRT_Api& api() const { return *api_; }

  // Calls a function of the table; `doing` is for the message: "compiling the train step". The
  // function is absent (null) in older plugins: then the error says so.
  template <typename Args>
  void call(PJRT_Error* (*function)(Args*), Args& args, std::string_view doing) const {
    if (function == nullptr) raise_absent(doing);
    check(function(&args), doing);
  }
  void check(PJRT_Error* error, std::string_view doing) const;  // takes the error over

 private:
  explicit Plugin(std::filesystem::path path);
  [[noreturn]] void raise_absent(std::string_view doing) const;

  std::filesystem::path path_;
  const PJRT_Api* api_ = nullptr;
  std::unique_ptr<PJRT_Api> table_;  // as long as graft's header knows it; absent ends are null
  int api_major_ = 0, api_minor_ = 0;
  std::vector<std::string> extensions_;
  Options attributes_;
};

// A struct of PJRT arguments, zero but for its size.
#define GRAFT_PJRT_ARGS(type, name) \
  type name{};                      \
  name.struct_size = type##_STRUCT_SIZE

}  // namespace graft::pjrt
