#pragma once
// What a recipe says about its data (the keys under `data`), as one value.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace graft {

// How rows are written; kAuto tells it from their columns.
enum class DataFormat {
  kAuto,
  kMessages,
  kPromptCompletion,
  kText,
  kAlpaca,
  kShareGpt,
  kTokenized
};

// Which tokens are trained. kAuto: replies of a conversation, the completion of a prompt, all of a
// text, and what `labels` say. kCompletion, of a conversation: its last reply.
enum class TrainOn { kAuto, kAssistant, kCompletion, kAll };

// What becomes of a row longer than max_length.
enum class OnTooLong { kDrop, kTruncate, kError };

std::string_view data_format_name(DataFormat format);  // "prompt_completion"
std::string_view train_on_name(TrainOn train_on);
std::string_view on_too_long_name(OnTooLong on_too_long);
// Raise Error listing the names there are.
DataFormat data_format_from_name(std::string_view name);
TrainOn train_on_from_name(std::string_view name);
OnTooLong on_too_long_from_name(std::string_view name);

struct DataOptions {
  std::string train;  // path
  std::string eval;   // path, or empty
  DataFormat format = DataFormat::kAuto;
  TrainOn train_on = TrainOn::kAuto;
  int64_t max_length = 1024;  // tokens of a row
  OnTooLong on_too_long = OnTooLong::kDrop;
  bool packing = false;
  std::string chat_template;              // path of a Jinja file; empty: the model's own
  std::string template_variables = "{}";  // a JSON object, handed to the template
  std::string template_date;              // YYYY-MM-DD, the day that templates see
  double max_dropped_share = 0.5;
  double max_untrained_share = 0.5;
};

// Raises Error naming the key where a value is out of range.
void validate(const DataOptions& options);

}  // namespace graft
