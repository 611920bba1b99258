#pragma once
// Compiled programs on disk, so that a second start does not compile again.
//
// A program is found by everything that it depends on: its text, the compile options, the plugin's
// SHA-256, platform and kind of device, and for a CPU the processor's instruction set. A file that
// does not load is compiled anew and replaced. The folder is kept below a size: what was used
// longest ago goes first.
//
//   $XDG_CACHE_HOME/graft/executables, else ~/.cache/graft/executables; GRAFT_EXECUTABLE_CACHE=off
//   turns it off, any other value is the folder.

#include <filesystem>
#include <memory>
#include <string>

#include "ir/executor.h"
#include "pjrt/client.h"

namespace graft::pjrt {

struct CompiledResult {
  std::unique_ptr<LoadedProgram> program;
  CompileReport report;
};

// Loads the program or compiles it and keeps it. Plugins that cannot serialise compile each time.
CompiledResult compile_cached(const Client& client, const std::string& text,
                              const CompileSettings& settings);

std::string cache_key(const Client& client, const std::string& text,
                      const CompileSettings& settings);

}  // namespace graft::pjrt
