#include "data/row_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "data/utf8.h"

namespace graft {
namespace {

using nlohmann::ordered_json;

// The library's reason without its own idea of the place and without the text that it had read so
// far.
std::string reason_of(std::string message) {
  if (const size_t place = message.find(": "); place != std::string::npos) {
    message.erase(0, place + 2);
  }
  if (const size_t read = message.find("; last read: "); read != std::string::npos) {
    const size_t rest = message.rfind("; expected ");
    const bool keep = rest != std::string::npos && rest > read;
    message = message.substr(0, read) + (keep ? message.substr(rest) : "");
  }
  if (const size_t dash = message.find(" - "); dash != std::string::npos)
    message.erase(0, dash + 3);
  return message;
}

// The offset of the bracket that opens the level beyond the limit, or npos.
size_t find_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return i;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::string_view::npos;
}

// The place of offset `at` of a row's text, in the file.
std::string place_of(const Rows& rows, const Row& row, size_t at) {
  if (!rows.exact()) return rows.where(row);
  const std::string_view before = row.json.substr(0, std::min(at, row.json.size()));
  const int64_t breaks = std::count(before.begin(), before.end(), '\n');
  const size_t line_start = breaks == 0 ? 0 : before.rfind('\n') + 1;
  const auto characters = static_cast<int64_t>(count_characters(before.substr(line_start)));
  const int64_t column = characters + (breaks == 0 ? row.column : 1);
  return fmt::format("{}, column {}", rows.where(row.line + breaks), column);
}

}  // namespace

ordered_json parse_row(const Rows& rows, const Row& row) {
  if (const size_t deep = find_too_deep(row.json); deep != std::string_view::npos) {
    throw Error(fmt::format("JSON nested deeper than {} levels", kMaxJsonDepth),
                place_of(rows, row, deep));
  }
  ordered_json value;
  try {
    value = ordered_json::parse(row.json);
  } catch (const ordered_json::parse_error& e) {
    const size_t at = e.byte > 0 ? e.byte - 1 : 0;
    const bool cut = !row.json.empty() && at >= row.json.size() &&
                     row.json.data() == rows.rows().back().json.data();
    throw Error(fmt::format("invalid JSON: {}", reason_of(e.what())), place_of(rows, row, at),
                cut ? "the file may have been cut off: fetch or write it again"
                    : "each row is one JSON object, on one line or in one JSON array");
  } catch (const ordered_json::exception& e) {
    throw Error(fmt::format("invalid JSON: {}", reason_of(e.what())), rows.where(row));
  }
  if (!value.is_object()) {
    throw Error(fmt::format("a row must be a JSON object, not {}", value.type_name()),
                rows.where(row));
  }
  return value;
}

ordered_json parse_json_text(std::string_view text, const std::string& where) {
  if (find_too_deep(text) != std::string_view::npos) {
    throw Error(fmt::format("JSON nested deeper than {} levels", kMaxJsonDepth), where);
  }
  try {
    return ordered_json::parse(text);
  } catch (const ordered_json::exception& e) {
    throw Error(fmt::format("invalid JSON in a string: {}", reason_of(e.what())), where);
  }
}

}  // namespace graft
