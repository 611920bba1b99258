#pragma once
// CSV as RFC 4180 has it, turned to JSON rows.
//
// The first record names the columns; every other one becomes an object of strings. Fields may
// stand in double quotes, where commas and line breaks are content and "" is one quote. Records end
// with LF or CR LF. An unquoted field may hold quotes after its first character. Blank lines are no
// records.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace graft {

struct CsvRows {
  struct Place {
    int64_t line;       // on which the record begins, from 1
    size_t begin, end;  // of its object in `json`
  };
  std::string json;
  std::vector<Place> places;
};

// text: valid UTF-8 without a byte order mark. Raises Error naming `name` and the line where a
// record has another number of fields than the header, a quote is never closed, or text follows a
// closing quote.
CsvRows csv_to_json(std::string_view text, char separator, const std::string& name);

}  // namespace graft
