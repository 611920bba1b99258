#include "data/dataset.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "data/conversation.h"
#include "data/row_json.h"
#include "data/row_tokenizer.h"
#include "data/source.h"

namespace graft {
namespace {

// Runs body(i) for i in [0, n) on some threads; raises what the smallest failing i raised.
template <typename Body>
void parallel_for(size_t n, int threads, const Body& body) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t failed_at = n;
  std::exception_ptr failure;
  std::atomic<bool> stop{false};
  const auto work = [&] {
    // Indices are claimed in order: when one fails, all smaller ones are claimed and will be
    // finished.
    while (!stop.load()) {
      const size_t i = next.fetch_add(1);
      if (i >= n) return;
      try {
        body(i);
      } catch (...) {
        stop.store(true);
        const std::lock_guard lock(mutex);
        if (i < failed_at) {
          failed_at = i;
          failure = std::current_exception();
        }
      }
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

// The same thing said of several rows.
class Notes {
 public:
  void add(const std::string& note, int64_t line) {
    auto [it, added] = lines_.try_emplace(note);
    if (added) order_.push_back(note);
    if (it->second.empty() || it->second.back() != line) it->second.push_back(line);
  }
  void write(const Dataset& data, std::vector<std::string>& warnings) const {
    for (const std::string& note : order_) {
      const std::vector<int64_t>& lines = lines_.at(note);
      warnings.push_back(fmt::format("{}: {} of {} rows ({}): {}", data.name, lines.size(),
                                     data.rows, list_lines(lines, data.unit), note));
    }
  }

 private:
  std::unordered_map<std::string, std::vector<int64_t>> lines_;
  std::vector<std::string> order_;
};

class Loader {
 public:
  Loader(const std::filesystem::path& path, const TextModel* text, const DataOptions& options,
         int threads)
      : options_(options), text_(text), rows_(read_rows(path)), threads_(threads) {
    data_.name = rows_.name();
    data_.unit = rows_.unit();
    data_.rows = static_cast<int64_t>(rows_.size());
  }

  Dataset load() {
    decide_format();
    std::vector<TokenizedRow> tokenized = tokenize_all();
    auto examples = std::make_shared<std::vector<TokenizedExample>>();
    examples->reserve(tokenized.size());
    for (TokenizedRow& row : tokenized) {
      for (const std::string& note : row.notes) notes_.add(note, row.example.line);
      if (fit(row.example)) examples->push_back(std::move(row.example));
    }
    for (const TokenizedExample& example : *examples) count(example);
    note_repeats(*examples);
    data_.examples = examples;
    warn_of_lengths();
    notes_.write(data_, data_.warnings);
    refuse_if_too_little_is_left();
    return std::move(data_);
  }

 private:
  void decide_format() {
    data_.format = options_.format;
    if (data_.format != DataFormat::kAuto) return;
    const Row& first = rows_.rows().front();
    std::vector<std::string> also;
    data_.format = detect_format(parse_row(rows_, first), rows_.where(first), &also);
    if (also.empty()) return;
    std::string others;
    for (const std::string& name : also) others += (others.empty() ? "" : ", ") + name;
    data_.warnings.push_back(fmt::format(
        "{}: the columns fit {} and also {}; read as {} (data.format decides)", data_.name,
        data_format_name(data_.format), others, data_format_name(data_.format)));
  }

  std::vector<TokenizedRow> tokenize_all() const {
    const RowTokenizer tokenizer(text_, options_);
    FormatRules rules{.format = data_.format, .columnar = rows_.unit() == "row"};
    rules.chat_template = text_ != nullptr && text_->chat_template.has_value();
    if (rules.chat_template) rules.template_source = text_->chat_template->source();
    std::vector<TokenizedRow> tokenized(rows_.size());
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const int threads = std::min<int>(threads_ > 0 ? threads_ : cores,
                                      static_cast<int>(std::min<size_t>(rows_.size(), 1024)));
    parallel_for(rows_.size(), threads, [&](size_t i) {
      const Row& row = rows_.rows()[i];
      const std::string where = rows_.where(row);
      tokenized[i] = tokenizer.tokenize(normalize_row(parse_row(rows_, row), rules, where), where);
      tokenized[i].example.line = row.line;
    });
    return tokenized;
  }

  // Whether the row stays, cut where that was asked for.
  bool fit(TokenizedExample& example) {
    if (example.size() <= options_.max_length) return true;
    const int64_t tokens = example.size();
    switch (options_.on_too_long) {
      case OnTooLong::kError:
        throw Error(fmt::format("the row has {} tokens, more than data.max_length: {}", tokens,
                                options_.max_length),
                    rows_.where(example.line),
                    "raise data.max_length, or set data.on_too_long: drop");
      case OnTooLong::kDrop:
        data_.dropped.push_back(
            {example.line, fmt::format("longer than max_length {}", options_.max_length), tokens});
        return false;
      case OnTooLong::kTruncate:
        cut_lines_.push_back(example.line);
        cut_tokens_ += tokens - options_.max_length;
        for (size_t i = static_cast<size_t>(options_.max_length); i < example.trained.size(); ++i) {
          cut_trained_ += example.trained[i];
        }
        example.ids.resize(static_cast<size_t>(options_.max_length));
        example.trained.resize(static_cast<size_t>(options_.max_length));
    }
    return true;
  }

  void count(const TokenizedExample& example) {
    const int64_t trained = example.trained_count();
    data_.tokens += example.size();
    data_.trained_tokens += trained;
    data_.trained_examples += trained > 0 ? 1 : 0;
    data_.longest = std::max(data_.longest, example.size());
    if (trained == 0) {
      untrained_lines_.push_back(example.line);
      notes_.add("no token of it is trained", example.line);
    }
    for (const int32_t id : example.ids) {
      if (id <= data_.largest_id) continue;
      data_.largest_id = id;
      data_.largest_id_line = example.line;
    }
    if (text_ != nullptr) count_special(example);
  }

  void count_special(const TokenizedExample& example) {
    for (size_t i = 0; i < example.ids.size(); ++i) {
      const bool stops =
          example.trained[i] != 0 &&
          std::binary_search(text_->stop_ids.begin(), text_->stop_ids.end(), example.ids[i]);
      data_.trained_stop_tokens += stops ? 1 : 0;
    }
    if (text_->bos_id && example.size() > 1 && example.ids[0] == *text_->bos_id &&
        example.ids[1] == *text_->bos_id) {
      data_.doubled_bos_lines.push_back(example.line);
      notes_.add("begins with two beginning-of-sequence tokens", example.line);
    }
  }

  void note_repeats(const std::vector<TokenizedExample>& examples) {
    std::unordered_multimap<uint64_t, const TokenizedExample*> seen;
    seen.reserve(examples.size());
    for (const TokenizedExample& example : examples) {
      uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits
      for (size_t i = 0; i < example.ids.size(); ++i) {
        const auto id = static_cast<uint32_t>(example.ids[i]);
        hash = (hash ^ (uint64_t{id} << 1 | example.trained[i])) * 0x100000001b3u;
      }
      const auto [begin, end] = seen.equal_range(hash);
      const bool repeats = std::any_of(begin, end, [&](const auto& entry) {
        return entry.second->ids == example.ids && entry.second->trained == example.trained;
      });
      if (repeats) notes_.add("repeats an earlier row exactly", example.line);
      else seen.emplace(hash, &example);
    }
  }

  void warn_of_lengths() {
    if (!data_.dropped.empty()) {
      std::vector<int64_t> lines;
      int64_t longest = 0;
      for (const DroppedRow& row : data_.dropped) {
        lines.push_back(row.line);
        longest = std::max(longest, row.tokens);
      }
      data_.warnings.push_back(
          fmt::format("{}: {} of {} rows ({}): dropped, longer than data.max_length: {} (the "
                      "longest has {} tokens)",
                      data_.name, lines.size(), data_.rows, list_lines(lines, data_.unit),
                      options_.max_length, longest));
    }
    if (!cut_lines_.empty()) {
      data_.warnings.push_back(
          fmt::format("{}: {} of {} rows ({}): cut to data.max_length: {}; {} tokens are lost, {} "
                      "of them trained "
                      "ones",
                      data_.name, cut_lines_.size(), data_.rows, list_lines(cut_lines_, data_.unit),
                      options_.max_length, cut_tokens_, cut_trained_));
    }
  }

  void refuse_if_too_little_is_left() const {
    const auto kept = static_cast<int64_t>(data_.examples->size());
    const auto dropped = static_cast<int64_t>(data_.dropped.size());
    const auto untrained = static_cast<int64_t>(untrained_lines_.size());
    if (data_.trained_tokens == 0) {
      throw Error(fmt::format("no trained token is left: of {} rows, {} are longer than "
                              "data.max_length: {} and {} have nothing that is trained",
                              data_.rows, dropped, options_.max_length, untrained),
                  data_.name, "raise data.max_length, or check data.train_on and the data's roles");
    }
    if (static_cast<double>(dropped) >
        options_.max_dropped_share * static_cast<double>(data_.rows)) {
      throw Error(
          fmt::format("{} of {} rows are longer than data.max_length: {} and would be dropped",
                      dropped, data_.rows, options_.max_length),
          data_.name,
          "raise data.max_length, set data.on_too_long: truncate, or raise "
          "data.max_dropped_share");
    }
    if (static_cast<double>(untrained) > options_.max_untrained_share * static_cast<double>(kept)) {
      throw Error(fmt::format("{} of {} rows ({}) have no token that is trained", untrained, kept,
                              list_lines(untrained_lines_, data_.unit)),
                  data_.name,
                  "check data.train_on and the data's roles, or raise "
                  "data.max_untrained_share");
    }
  }

  const DataOptions& options_;
  const TextModel* text_;
  Rows rows_;
  int threads_;
  Dataset data_;
  Notes notes_;
  std::vector<int64_t> untrained_lines_, cut_lines_;
  int64_t cut_tokens_ = 0, cut_trained_ = 0;
};

}  // namespace

Dataset load_dataset(const std::filesystem::path& path, const TextModel* text,
                     const DataOptions& options, int threads) {
  return Loader(path, text, options, threads).load();
}

std::string list_lines(const std::vector<int64_t>& lines, const std::string& unit) {
  constexpr size_t kShown = 10;
  std::string list = unit + (lines.size() == 1 ? " " : "s ");
  for (size_t i = 0; i < std::min(lines.size(), kShown); ++i) {
    list += (i == 0 ? "" : ", ") + std::to_string(lines[i]);
  }
  if (lines.size() > kShown) list += fmt::format(" and {} more", lines.size() - kShown);
  return list;
}

}  // namespace graft
