#pragma once
// What graft says to a person: always on stderr, so that stdout stays free for results and JSON.

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace graft {

void log_line(std::string_view text);     // plain information
void log_warning(std::string_view text);  // prefixed "warning: "

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  log_warning(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace graft
