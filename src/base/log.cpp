#include "base/log.h"

#include <cstdio>
#include <string>

namespace graft {
namespace {

// One call a line, so that lines of several threads do not mix.
void write_line(std::string_view prefix, std::string_view text) {
  std::string line;
  line.reserve(prefix.size() + text.size() + 1);
  line.append(prefix).append(text).push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void log_line(std::string_view text) { write_line("", text); }

void log_warning(std::string_view text) { write_line("warning: ", text); }

}  // namespace graft
