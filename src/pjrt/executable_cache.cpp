#include "pjrt/executable_cache.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>

#include "base/file.h"
#include "base/user_cache.h"
#include "formats/sha256.h"

namespace graft::pjrt {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr uintmax_t kLargestFolder = uintmax_t{4} << 30;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::optional<fs::path> cache_folder() {
  if (const char* given = std::getenv("GRAFT_EXECUTABLE_CACHE"); given != nullptr && *given != 0) {
    if (std::string_view(given) == "off") return std::nullopt;
    return fs::path(given);
  }
  return user_cache_folder() / "executables";
}

// The processor's own list: code made for another one would end in SIGILL.
std::string instruction_sets() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, model, flags;
  while (std::getline(file, line)) {
    if (model.empty() && line.starts_with("model name")) model = line;
    if (flags.empty() && line.starts_with("flags")) flags = line;
  }
  return model + "\n" + flags;
}

std::optional<std::string> read_if_there(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  try {
    std::string bytes = read_text_file(path);
    fs::last_write_time(path, fs::file_time_type::clock::now(), error);  // used now
    return bytes;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void keep_small(const fs::path& folder) {
  struct File {
    fs::file_time_type used;
    uintmax_t size;
    fs::path path;
  };
  std::vector<File> files;
  std::error_code error;
  uintmax_t total = 0;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    files.push_back({entry.last_write_time(error), entry.file_size(error), entry.path()});
    total += files.back().size;
  }
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (total <= kLargestFolder) return;
    fs::remove(file.path, error);
    total -= file.size;
  }
}

}  // namespace

std::string cache_key(const Client& client, const std::string& text,
                      const CompileSettings& settings) {
  Sha256 sum;
  const auto add = [&](const std::string& part) {
    const std::string length = std::to_string(part.size()) + ":";
    sum.update(std::as_bytes(std::span(length)));
    sum.update(std::as_bytes(std::span(part)));
  };
  add(text);
  add(compile_options(settings));
  add(client.plugin().sha256());
  add(client.platform());
  add(client.platform_version());
  add(client.device_kind());
  if (client.platform() == "cpu") add(instruction_sets());
  if (const char* flags = std::getenv("XLA_FLAGS"); flags != nullptr) add(flags);
  return sum.hex();
}

CompiledResult compile_cached(const Client& client, const std::string& text,
                              const CompileSettings& settings) {
  const Clock::time_point start = Clock::now();
  const std::optional<fs::path> folder = cache_folder();
  fs::path file;
  if (folder) {
    file = *folder / (cache_key(client, text, settings) + ".pjrt");
    if (const auto bytes = read_if_there(file)) {
      try {
        auto program = client.load(*bytes, settings);
        return {std::move(program), {seconds_since(start), true}};
      } catch (const Error&) {
        // Written by another version, or damaged: compiled anew below, and replaced.
      }
    }
  }
  CompiledResult result{client.compile(text, settings), {}};
  result.report.seconds = seconds_since(start);
  if (folder) {
    try {
      const std::string bytes = result.program->compiled().serialize();
      make_directories(*folder);
      write_file_atomically(file, bytes);
      keep_small(*folder);
    } catch (const Error&) {
      // A plugin that cannot serialise, or a folder that cannot be written: the run goes on.
    }
  }
  return result;
}

}  // namespace graft::pjrt
