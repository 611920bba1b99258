#pragma once
// Data files as rows of JSON text.
//
// A file holds JSON lines, one JSON array, CSV or TSV with a header line, or Parquet; each of them
// but Parquet may be gzip'd. What it is is told by its first bytes where they say so (gzip,
// Parquet, "[" of an array), by its name otherwise. Every row becomes the text of one JSON object
// that knows its place in the file, so that any later complaint can name it. JSON files stay mapped
// and their rows point into them; the other kinds are converted in memory.
//
//   const Rows rows = read_rows("train.jsonl");
//   for (const Row& row : rows.rows()) {
//     const nlohmann::ordered_json object = parse_row(rows, row);   // data/row_json.h
//     if (...) throw Error("\"role\" is missing", rows.where(row), "...");
//   }
//
// JSON lines end with LF or CR LF only; U+2028, U+2029 and U+0085 are content. Lines of nothing but
// white space are no rows, but count as lines. A byte order mark is dropped.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace graft {

struct Row {
  int64_t line =
      0;  // where the row begins: the line of a text file, the row of a Parquet file; from 1
  int64_t column = 1;     // the character of that line, from 1
  std::string_view json;  // valid UTF-8, not yet parsed
};

class Rows {
 public:
  // `owner` keeps what the rows point into alive. `exact` says that offsets into a row's text are
  // offsets into the file, so that a fault inside a row has a line and a column of its own.
  Rows(std::string name, std::string unit, bool exact, std::vector<Row> rows,
       std::shared_ptr<const void> owner);

  const std::vector<Row>& rows() const { return rows_; }
  size_t size() const { return rows_.size(); }
  const std::string& name() const { return name_; }  // of the file
  const std::string& unit() const { return unit_; }  // "line" or "row"
  bool exact() const { return exact_; }
  // "train.jsonl, line 3"
  std::string where(const Row& row) const;
  std::string where(int64_t line) const;

 private:
  std::string name_, unit_;
  bool exact_;
  std::vector<Row> rows_;
  std::shared_ptr<const void> owner_;
};

// All rows of a file; raises Error naming file and line where it is empty, not UTF-8, or not of its
// kind. The JSON of a row itself is checked by parse_row().
Rows read_rows(const std::filesystem::path& path);

// Rows of a text in memory: JSON lines or one JSON array. `name` stands for the file in messages.
Rows read_json_rows(std::string text, std::string name);

}  // namespace graft
