#pragma once
// Where plugins come from and where they lie: pinned Python wheels, fetched by pip with checksums
// into a folder of the user.
//
//   $GRAFT_PLUGINS, else $XDG_CACHE_HOME/graft/plugins, else ~/.cache/graft/plugins
//     cpu/      XLA for this machine's processor, and for virtual devices in tests
//     cuda13/   XLA for NVIDIA GPUs, with ptxas and libdevice to compile for them
//     tpu/      libtpu
//
//   install_plugin("cpu");
//   auto plugin = Plugin::load(find_plugin("cpu"));

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace graft::pjrt {

struct PluginKind {
  std::string name;          // "cpu", "cuda13", "tpu": its folder
  std::string alias;         // as in pjrt:cuda
  std::string library;       // the shared library inside the folder
  std::string requirements;  // lines of pip, with hashes
  std::string description;
};
const std::vector<PluginKind>& plugin_kinds();
const PluginKind& plugin_kind(std::string_view name);  // by name or alias; raises Error

std::filesystem::path plugins_folder();
std::filesystem::path plugin_folder(const PluginKind& kind);
bool is_installed(const PluginKind& kind);

// The shared library of an executor's name: "cpu", "cuda", "tpu", or the path of a plugin. Raises
// Error that says how to get one where it is not installed.
std::filesystem::path find_plugin(std::string_view name);

// Fetches a plugin with pip and puts it in its folder, whole or not at all. Returns false where it
// was there already.
bool install_plugin(std::string_view name);

}  // namespace graft::pjrt
