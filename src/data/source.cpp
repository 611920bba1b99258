#include "data/source.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/csv.h"
#include "data/gzip.h"
#include "data/parquet.h"
#include "data/utf8.h"

namespace graft {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Splits a text of JSON lines, or one JSON array, into its rows.
class JsonSplitter {
 public:
  JsonSplitter(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  std::vector<Row> split() {
    skip_space();
    if (at_ == text_.size()) return {};
    if (text_[at_] == '[') split_array();
    else split_lines();
    return std::move(rows_);
  }

 private:
  std::string where() const {
    const std::string_view line = text_.substr(line_start_, at_ - line_start_);
    return fmt::format("{}, line {}, column {}", name_, line_, count_characters(line) + 1);
  }

  void step() {
    if (text_[at_] == '\n') {
      ++line_;
      line_start_ = at_ + 1;
    }
    ++at_;
  }
  void skip_space() {
    while (at_ < text_.size() && is_json_space(text_[at_])) step();
  }

  void split_lines() {
    at_ = line_start_;
    while (at_ < text_.size()) {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      std::string_view line = text_.substr(at_, end - at_);
      while (!line.empty() && is_json_space(line.back())) line.remove_suffix(1);
      size_t indent = 0;
      while (indent < line.size() && is_json_space(line[indent])) ++indent;
      if (indent < line.size()) {
        rows_.push_back({line_, static_cast<int64_t>(indent) + 1, line.substr(indent)});
      }
      at_ = end + 1;
      ++line_;
    }
  }

  void split_array() {
    const std::string opened = where();
    step();
    skip_space();
    if (at_ < text_.size() && text_[at_] == ']') {
      step();
    } else {
      while (read_element(opened)) {
      }
    }
    skip_space();
    if (at_ < text_.size()) {
      throw Error("something follows the JSON array", where(),
                  "a file holds either one JSON array or one JSON object a line");
    }
  }

  // Reads up to the comma (true) or the bracket (false) that ends an element. What the element is,
  // its parser will say.
  bool read_element(const std::string& opened) {
    skip_space();
    Row row{line_, 0, {}};
    row.column =
        static_cast<int64_t>(count_characters(text_.substr(line_start_, at_ - line_start_))) + 1;
    const size_t begin = at_;
    int64_t depth = 0;
    bool in_string = false;
    for (; at_ < text_.size(); step()) {
      const char c = text_[at_];
      if (in_string) {
        if (c == '\\' && at_ + 1 < text_.size()) step();
        else if (c == '"') in_string = false;
      } else if (c == '"') {
        in_string = true;
      } else if (c == '[' || c == '{') {
        ++depth;
      } else if (depth > 0) {
        if (c == ']' || c == '}') --depth;
      } else if (c == ',' || c == ']') {
        row.json = text_.substr(begin, at_ - begin);
        rows_.push_back(row);
        step();
        return c == ',';
      }
    }
    throw Error(fmt::format("the file ends inside the JSON array that begins in {}", opened),
                where(), "the file may have been cut off: fetch or write it again");
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  size_t line_start_ = 0;
  int64_t line_ = 1;
  std::vector<Row> rows_;
};

std::string lower_extension(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

// Kinds that people bring and that no reader here takes, by their first bytes.
std::string_view foreign_kind(std::string_view bytes) {
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"PK\x03\x04", "a zip archive"},  {"\x28\xB5\x2F\xFD", "compressed with zstd"},
      {"BZh", "compressed with bzip2"}, {"\xFD\x37zXZ", "compressed with xz"},
      {"ARROW1", "an Arrow file"},      {"\xFF\xFF\xFF\xFF", "an Arrow stream"},
      {"GGUF", "a GGUF model"},
  };
  for (const auto& [magic, kind] : kKinds) {
    if (bytes.starts_with(magic)) return kind;
  }
  return {};
}

void check_utf8(std::string_view text, const std::string& name) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw Error("the text is UTF-16, not UTF-8", name + ", line 1", "save the file as UTF-8");
  }
  const size_t at = find_invalid_utf8(text);
  if (at == std::string_view::npos) return;
  const int64_t line = 1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(at), '\n');
  throw Error(fmt::format("byte 0x{:02x} is not valid UTF-8", static_cast<unsigned char>(text[at])),
              fmt::format("{}, line {}", name, line), "save the file as UTF-8");
}

[[noreturn]] void throw_empty(const std::string& name) {
  throw Error("the file is empty: it has no rows", name);
}

Rows converted(std::string name, std::string unit, std::string text, std::vector<Row> rows,
               const std::vector<CsvRows::Place>& places) {
  const auto owner = std::make_shared<const std::string>(std::move(text));
  for (const CsvRows::Place& place : places) {
    rows.push_back(
        {place.line, 1, std::string_view(*owner).substr(place.begin, place.end - place.begin)});
  }
  return Rows(std::move(name), std::move(unit), false, std::move(rows), owner);
}

Rows rows_of_parquet(const std::filesystem::path& path) {
  std::string text = parquet_to_json_lines(path);
  std::vector<CsvRows::Place> places;
  int64_t row = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    places.push_back({++row, at, end});
    at = end + 1;
  }
  return converted(path.string(), "row", std::move(text), {}, places);
}

Rows rows_of_text(std::string_view text, const std::filesystem::path& path, std::string extension,
                  std::shared_ptr<const void> owner) {
  const std::string name = path.string();
  if (const std::string_view kind = foreign_kind(text); !kind.empty()) {
    throw Error(fmt::format("the file is {}", kind), name,
                "give JSON lines, a JSON array, CSV or Parquet; gzip is the one compression read");
  }
  check_utf8(text, name);
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (extension == ".csv" || extension == ".tsv") {
    CsvRows csv = csv_to_json(text, extension == ".csv" ? ',' : '\t', name);
    return converted(name, "line", std::move(csv.json), {}, csv.places);
  }
  const bool named_json =
      extension == ".jsonl" || extension == ".json" || extension == ".ndjson" || extension == ".jl";
  const auto first = std::find_if_not(text.begin(), text.end(), is_json_space);
  const bool looks_like_json = first == text.end() || *first == '{' || *first == '[';
  if (!named_json && !looks_like_json) {
    throw Error("cannot tell what kind of data this is", name,
                "name it .jsonl, .json, .csv, .tsv or .parquet (each but the last also .gz)");
  }
  std::vector<Row> rows = JsonSplitter(text, name).split();
  return Rows(name, "line", true, std::move(rows), std::move(owner));
}

Rows read_any(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("PAR1")) return rows_of_parquet(path);
  if (!is_gzip(text)) return rows_of_text(text, path, lower_extension(path), file);
  const auto unpacked = std::make_shared<const std::string>(gunzip(text, path.string()));
  if (unpacked->starts_with("PAR1")) {
    throw Error("a Parquet file inside gzip is not read", path.string(), "unpack it first");
  }
  const std::string extension = lower_extension(path);
  return rows_of_text(*unpacked, path,
                      extension == ".gz" ? lower_extension(path.stem()) : extension, unpacked);
}

}  // namespace

Rows::Rows(std::string name, std::string unit, bool exact, std::vector<Row> rows,
           std::shared_ptr<const void> owner)
    : name_(std::move(name)),
      unit_(std::move(unit)),
      exact_(exact),
      rows_(std::move(rows)),
      owner_(std::move(owner)) {}

std::string Rows::where(const Row& row) const { return where(row.line); }
std::string Rows::where(int64_t line) const { return fmt::format("{}, {} {}", name_, unit_, line); }

Rows read_rows(const std::filesystem::path& path) {
  Rows rows = read_any(path);
  if (rows.size() == 0) throw_empty(path.string());
  return rows;
}

Rows read_json_rows(std::string text, std::string name) {
  check_utf8(text, name);
  const auto owner = std::make_shared<const std::string>(std::move(text));
  std::string_view view = *owner;
  if (view.starts_with(kByteOrderMark)) view.remove_prefix(kByteOrderMark.size());
  std::vector<Row> rows = JsonSplitter(view, name).split();
  if (rows.empty()) throw_empty(name);
  return Rows(std::move(name), "line", true, std::move(rows), owner);
}

}  // namespace graft
