#include "data/options.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace graft {
namespace {

template <typename T, size_t N>
using Names = std::array<std::pair<std::string_view, T>, N>;

constexpr Names<DataFormat, 7> kFormats{{{"auto", DataFormat::kAuto},
                                         {"messages", DataFormat::kMessages},
                                         {"prompt_completion", DataFormat::kPromptCompletion},
                                         {"text", DataFormat::kText},
                                         {"alpaca", DataFormat::kAlpaca},
                                         {"sharegpt", DataFormat::kShareGpt},
                                         {"tokenized", DataFormat::kTokenized}}};
constexpr Names<TrainOn, 4> kTrainOn{{{"auto", TrainOn::kAuto},
                                      {"assistant", TrainOn::kAssistant},
                                      {"completion", TrainOn::kCompletion},
                                      {"all", TrainOn::kAll}}};
constexpr Names<OnTooLong, 3> kOnTooLong{
    {{"drop", OnTooLong::kDrop}, {"truncate", OnTooLong::kTruncate}, {"error", OnTooLong::kError}}};

template <typename T, size_t N>
std::string_view name_of(const Names<T, N>& names, T value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  GRAFT_CHECK(false);
  return {};
}

template <typename T, size_t N>
T value_of(const Names<T, N>& names, std::string_view name, std::string_view key) {
  std::string known;
  for (const auto& [candidate, value] : names) {
    if (candidate == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(candidate);
  }
  throw Error(fmt::format("\"{}\" is no known value", name), std::string(key),
              "use one of: " + known);
}

void check_share(double share, const char* key) {
  if (!(share >= 0 && share <= 1)) {
    throw Error(fmt::format("a share lies between 0 and 1, not {}", share), key);
  }
}

}  // namespace

std::string_view data_format_name(DataFormat format) { return name_of(kFormats, format); }
std::string_view train_on_name(TrainOn train_on) { return name_of(kTrainOn, train_on); }
std::string_view on_too_long_name(OnTooLong value) { return name_of(kOnTooLong, value); }

DataFormat data_format_from_name(std::string_view name) {
  return value_of(kFormats, name, "data.format");
}
TrainOn train_on_from_name(std::string_view name) {
  return value_of(kTrainOn, name, "data.train_on");
}
OnTooLong on_too_long_from_name(std::string_view name) {
  return value_of(kOnTooLong, name, "data.on_too_long");
}

void validate(const DataOptions& options) {
  constexpr int64_t kLongest = int64_t{1} << 24;
  if (options.max_length < 2 || options.max_length > kLongest) {
    throw Error(fmt::format("must lie between 2 and {}, not {}", kLongest, options.max_length),
                "data.max_length");
  }
  check_share(options.max_dropped_share, "data.max_dropped_share");
  check_share(options.max_untrained_share, "data.max_untrained_share");
}

}  // namespace graft
