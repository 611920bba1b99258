#pragma once
// Errors that a user can act on.
//
// A user's mistake (a bad file, key, shape, value) raises graft::Error, which says three things:
// what is wrong, where (file, line, key, tensor), and what to do about it. It is caught once, in
// main(). A programmer's mistake is an assertion: GRAFT_CHECK.
//
//   throw Error("tensor \"lm_head.weight\" ends beyond the file", path, "download the file again");
//   throw Error("learning_rate must be positive, not -1", "recipe.yaml:12");

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace graft {

class Error : public std::runtime_error {
 public:
  explicit Error(std::string what, std::string where = "", std::string remedy = "");

  const std::string& problem() const { return problem_; }
  const std::string& where() const { return where_; }
  const std::string& remedy() const { return remedy_; }

  // The same error with an outer place put before its own ("recipe.yaml: data.train: ...").
  Error at(std::string_view outer) const;

 private:
  std::string problem_, where_, remedy_;
};

namespace internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}  // namespace internal

}  // namespace graft

// Asserts what only a fault in graft itself could break; kept in release builds. The message, a fmt
// format string with arguments, is optional.
#define GRAFT_CHECK(condition, ...)                                              \
  ((condition) ? void(0)                                                         \
               : ::graft::internal::check_failed(__FILE__, __LINE__, #condition, \
                                                 ::fmt::format("" __VA_ARGS__)))
