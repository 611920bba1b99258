#include "data/csv.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace graft {
namespace {

class CsvReader {
 public:
  CsvReader(std::string_view text, char separator, const std::string& name)
      : text_(text), separator_(separator), name_(name) {}

  // The next record that is not a blank line; false at the end.
  bool next(std::vector<std::string>& fields) {
    while (at_ < text_.size() && at_line_end()) skip_line_end();
    if (at_ >= text_.size()) return false;
    record_line_ = line_;
    fields.clear();
    while (true) {
      fields.push_back(read_field());
      if (at_ < text_.size() && text_[at_] == separator_) {
        ++at_;
        continue;
      }
      if (at_ < text_.size()) skip_line_end();
      return true;
    }
  }

  int64_t record_line() const { return record_line_; }
  std::string where(int64_t line) const { return fmt::format("{}, line {}", name_, line); }

 private:
  bool at_line_end() const {
    return text_[at_] == '\n' ||
           (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n');
  }
  void skip_line_end() {
    at_ += text_[at_] == '\r' ? 2 : 1;
    ++line_;
  }

  std::string read_field() {
    if (at_ < text_.size() && text_[at_] == '"') return read_quoted();
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != separator_ && !at_line_end()) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string read_quoted() {
    const int64_t opened = line_;
    std::string field;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c != '"') {
        field += c;
      } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        field += '"';
        ++at_;
      } else {
        ++at_;
        check_field_ends();
        return field;
      }
    }
    throw Error("a quoted field is never closed", where(opened),
                "the file may have been cut off, or a quote inside a field is not doubled");
  }

  void check_field_ends() const {
    if (at_ >= text_.size() || text_[at_] == separator_ || at_line_end()) return;
    throw Error("text follows the closing quote of a field", where(line_),
                "double the quotes inside a quoted field");
  }

  std::string_view text_;
  char separator_;
  const std::string& name_;
  size_t at_ = 0;
  int64_t line_ = 1;
  int64_t record_line_ = 1;
};

std::vector<std::string> read_header(CsvReader& reader) {
  std::vector<std::string> columns;
  if (!reader.next(columns)) return columns;
  std::set<std::string> seen;
  for (const std::string& column : columns) {
    if (!seen.insert(column).second) {
      throw Error(fmt::format("two columns are named \"{}\"", column),
                  reader.where(reader.record_line()));
    }
  }
  return columns;
}

}  // namespace

CsvRows csv_to_json(std::string_view text, char separator, const std::string& name) {
  CsvReader reader(text, separator, name);
  const std::vector<std::string> columns = read_header(reader);
  CsvRows rows;
  std::vector<std::string> fields;
  while (reader.next(fields)) {
    if (fields.size() != columns.size()) {
      throw Error(
          fmt::format("{} fields where the header names {} columns", fields.size(), columns.size()),
          reader.where(reader.record_line()),
          "put fields that hold the separator in double quotes");
    }
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (size_t i = 0; i < columns.size(); ++i) object[columns[i]] = std::move(fields[i]);
    const size_t begin = rows.json.size();
    rows.json += object.dump();
    rows.places.push_back({reader.record_line(), begin, rows.json.size()});
  }
  return rows;
}

}  // namespace graft
