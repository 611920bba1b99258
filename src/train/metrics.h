#pragma once
// What a run reports: one JSON object a line in metrics.jsonl, and the same numbers for
// TensorBoard.
//
//   MetricsWriter metrics("runs/first/metrics.jsonl");
//   metrics.write(StepMetrics{.step = 1, .loss = 4.68, ...});
//   metrics.write(EvalMetrics{.step = 10, .eval_loss = 3.1, .eval_tokens = 7300});
//
// A line is written whole, at once, and is there for whoever follows the file. Losses and norms
// have enough digits to give the same double back.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/append_file.h"

namespace graft {

// After `step` completed optimiser steps.
struct StepMetrics {
  int64_t step = 0;
  double epoch = 0;          // times through the data
  double loss = 0;           // nats a trained token, mean over those since the line before
  double grad_norm = 0;      // global, before clipping
  double learning_rate = 0;  // used by this step
  int64_t tokens = 0;        // in all, since the start
  int64_t trained_tokens = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  int64_t peak_rss_bytes = 0;
  double gemm_share = 0;  // share of the machine's GEMM limit
  // Name to one value a layer; written as "stats" where there is any.
  std::map<std::string, std::vector<double>> stats = {};
};

struct EvalMetrics {
  int64_t step = 0;
  double eval_loss = 0;
  int64_t eval_tokens = 0;
};

std::string format_metrics(const StepMetrics& metrics);  // one line, without its end
std::string format_metrics(const EvalMetrics& metrics);

class MetricsWriter {
 public:
  // Begins the file anew, or goes on at its end; raises Error naming it.
  explicit MetricsWriter(std::filesystem::path path,
                         AppendFile::Begin begin = AppendFile::Begin::kAnew)
      : file_(std::move(path), begin) {}

  void write(const StepMetrics& metrics) { file_.append(format_metrics(metrics) + "\n"); }
  void write(const EvalMetrics& metrics) { file_.append(format_metrics(metrics) + "\n"); }
  void sync() { file_.sync(); }

 private:
  AppendFile file_;
};

// Takes the lines of later steps, and one that was cut off, out of a metrics file: a run that goes
// on after `step` writes them again. A file that is missing counts as empty.
void cut_metrics(const std::filesystem::path& path, int64_t step);

}  // namespace graft
