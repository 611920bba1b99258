#pragma once
// The JSON of one row: parsed strictly, with faults placed in the file.
//
// Keys keep their order (a chat template prints tools in it). Nesting is limited to 128 levels: a
// deeper value could exhaust the stack of whoever walks it.

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "data/source.h"

namespace graft {

inline constexpr int kMaxJsonDepth = 128;

// The row as an object; raises Error naming file, line, column and reason.
nlohmann::ordered_json parse_row(const Rows& rows, const Row& row);

// A JSON value inside a string of a row (a list of messages in a CSV column); raises Error at
// `where`.
nlohmann::ordered_json parse_json_text(std::string_view text, const std::string& where);

}  // namespace graft
