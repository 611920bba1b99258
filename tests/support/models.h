#pragma once
// Real models that tests use where they are present. They are too large, or not free enough, to be
// committed:
//
//   GRAFT_MODEL_OR_SKIP(path, "GRAFT_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf");
//
// The place is the environment variable, else graft/models in the user's cache folder.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/user_cache.h"

namespace graft::testing {

inline std::filesystem::path model_path(const char* variable, const char* file) {
  if (const char* path = std::getenv(variable); path != nullptr && *path != '\0') return path;
  return user_cache_folder() / "models" / file;
}

}  // namespace graft::testing

#define GRAFT_MODEL_OR_SKIP(found, variable, file)                                              \
  const std::filesystem::path found = ::graft::testing::model_path(variable, file);             \
  if (!std::filesystem::exists(found)) {                                                        \
    GTEST_SKIP() << "NOT TESTED: the model is missing: " << found.string() << " (set " variable \
                 << " to its path)";                                                            \
  }                                                                                             \
  static_assert(true)
