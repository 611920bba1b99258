#pragma once
// The folder for what graft can fetch or compute again: models, plugins, compiled programs.
// scripts/common.sh and cmake/pjrt.cmake know it too.

#include <filesystem>

namespace graft {

// $XDG_CACHE_HOME/graft, else ~/.cache/graft, else (without a home) /tmp/.cache/graft. It may not
// be there yet.
std::filesystem::path user_cache_folder();

}  // namespace graft
