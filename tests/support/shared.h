#pragma once
// Where tests find the reference data that lies beside the repository (golden values, real
// templates, data cases). It is too large to be committed; where it is absent a test says so and is
// skipped:
//
//   TEST(Llama, Logits) {
//     GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a");
//     ... folder is a std::filesystem::path that exists ...
//   }
//
// The place is $GRAFT_SHARED, else ../shared beside the source tree.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace graft::testing {

inline std::filesystem::path shared_root() {
  if (const char* root = std::getenv("GRAFT_SHARED"); root != nullptr && *root != '\0') return root;
  return std::filesystem::path(GRAFT_SOURCE_DIR) / ".." / "shared";
}

inline std::filesystem::path shared_path(std::string_view relative) {
  return shared_root() / relative;
}

// Small data that is committed: tests/data.
inline std::filesystem::path test_data(std::string_view relative) {
  return std::filesystem::path(GRAFT_SOURCE_DIR) / "tests" / "data" / relative;
}

}  // namespace graft::testing

#define GRAFT_SHARED_OR_SKIP(variable, relative)                                   \
  const std::filesystem::path variable = ::graft::testing::shared_path(relative);  \
  if (!std::filesystem::exists(variable)) {                                        \
    GTEST_SKIP() << "NOT TESTED: reference data is missing: " << variable.string() \
                 << " (set GRAFT_SHARED to the folder that holds it)";             \
  }                                                                                \
  static_assert(true)
