#include "base/user_cache.h"

#include <cstdlib>

namespace graft {

std::filesystem::path user_cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return std::filesystem::path(cache) / "graft";
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr || *home == '\0' ? "/tmp" : home) / ".cache" /
         "graft";
}

}  // namespace graft
