#pragma once
// A whole data file as tokenized rows, with everything that a person should be told about it before
// the first step.
//
// Rows that are too long are dropped, cut or refused (data.on_too_long). Rows without a trained
// token are kept in the list but train nothing. Both are told with their lines; where they are more
// than the stated share of the data, or nothing is left to train on, the file is refused.
//
//   const Dataset data = load_dataset("train.jsonl", &text_model, recipe.data);
//   for (const std::string& warning : data.warnings) warn("{}", warning);
//   BatchStream stream(data.examples, {...});

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/example.h"
#include "data/options.h"
#include "text/text_model.h"

namespace graft {

struct DroppedRow {
  int64_t line = 0;
  std::string reason;
  int64_t tokens = 0;  // that it has
};

struct Dataset {
  std::string name;  // of the file
  std::string unit;  // what `line` counts: "line", or "row" of a Parquet file
  DataFormat format = DataFormat::kAuto;
  std::shared_ptr<const std::vector<TokenizedExample>> examples;  // not dropped, in file order
  std::vector<DroppedRow> dropped;
  std::vector<std::string> warnings;

  int64_t rows = 0;              // read
  int64_t trained_examples = 0;  // with a trained token
  int64_t tokens = 0;            // of `examples`
  int64_t trained_tokens = 0;
  int64_t longest = 0;  // tokens

  int64_t largest_id = -1;  // token id, and the line of a row that has it
  int64_t largest_id_line = 0;
  int64_t trained_stop_tokens = 0;         // trained tokens that end a generation
  std::vector<int64_t> doubled_bos_lines;  // rows that begin with two beginning-of-sequence tokens
};

// `text` may be null for tokenized data. threads: 0 uses every core; the result does not depend on
// it.
Dataset load_dataset(const std::filesystem::path& path, const TextModel* text,
                     const DataOptions& options, int threads = 0);

// "line 3"; "lines 3, 5, 7, 10 and 12 more"
std::string list_lines(const std::vector<int64_t>& lines, const std::string& unit);

}  // namespace graft
