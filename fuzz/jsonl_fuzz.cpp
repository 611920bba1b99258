// Data files: any bytes, read as JSON lines, a JSON array, CSV or gzip, either give rows of a known
// format or raise graft::Error.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/conversation.h"
#include "data/csv.h"
#include "data/gzip.h"
#include "data/row_json.h"
#include "data/source.h"
#include "data/utf8.h"

namespace {

using graft::NormalRow;

void expect(bool condition) {
  if (!condition) std::abort();
}

void check(const NormalRow& row) {
  expect(row.excluded.size() == row.messages.size());
  expect(row.first_completion <= row.messages.size());
  for (const auto& message : row.messages) expect(message.at("role").is_string());
  expect(row.labels.empty() || row.labels.size() == row.input_ids.size());
  for (const int32_t id : row.input_ids) expect(id >= 0);
}

void read_row(const graft::Rows& rows, const graft::Row& row) {
  const std::string where = rows.where(row);
  const nlohmann::ordered_json object = graft::parse_row(rows, row);
  graft::FormatRules rules{.format = graft::detect_format(object, where)};
  for (const bool columnar : {false, true}) {
    rules.columnar = columnar;
    rules.chat_template = columnar;
    check(graft::normalize_row(object, rules, where));
  }
}

template <typename Body>
void tolerate(const Body& body) {
  try {
    body();
  } catch (const graft::Error&) {
  }
}

void read_json(const std::string& text) {
  tolerate([&] {
    const graft::Rows rows = graft::read_json_rows(text, "fuzz.jsonl");
    int64_t line = 0;
    for (const graft::Row& row : rows.rows()) {
      expect(row.line >= line && row.column >= 1);
      line = row.line;
      tolerate([&] { read_row(rows, row); });
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read_json(text);
  if (graft::find_invalid_utf8(text) == std::string_view::npos) {
    tolerate([&] {
      // Each row that comes out is JSON.
      const graft::CsvRows csv = graft::csv_to_json(text, ',', "fuzz.csv");
      for (const auto& place : csv.places) {
        const std::string row = csv.json.substr(place.begin, place.end - place.begin);
        expect(nlohmann::json::accept(row));
      }
    });
  }
  if (graft::is_gzip(text)) {
    tolerate([&] { read_json(graft::gunzip(text, "fuzz.gz", size_t{1} << 20)); });
  }
  return 0;
}
