#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"

namespace graft {

void print_text(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    throw Error(fmt::format("cannot write the result: {}", std::strerror(errno)), "stdout");
  }
}

void print_json(const nlohmann::json& value) {
  print_text(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace graft
