#include "base/error.h"

#include <utility>

namespace graft {
namespace {

std::string compose(const std::string& problem, const std::string& where,
                    const std::string& remedy) {
  std::string text = where.empty() ? problem : where + ": " + problem;
  if (!remedy.empty()) text += "; " + remedy;
  return text;
}

}  // namespace

Error::Error(std::string what, std::string where, std::string remedy)
    : std::runtime_error(compose(what, where, remedy)),
      problem_(std::move(what)),
      where_(std::move(where)),
      remedy_(std::move(remedy)) {}

Error Error::at(std::string_view outer) const {
  std::string where = std::string(outer);
  if (!where_.empty()) where += ": " + where_;
  return Error(problem_, where, remedy_);
}

namespace internal {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::string text = fmt::format("{}:{}: internal check failed: {}", file, line, condition);
  if (!message.empty()) text += ": " + message;
  throw std::logic_error(text);
}

}  // namespace internal
}  // namespace graft
