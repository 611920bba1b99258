#include "train/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace graft {
namespace {

// The shortest text that gives the same double back; JSON has no other numbers.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

}  // namespace

std::string format_metrics(const StepMetrics& m) {
  std::string line = fmt::format(
      "{{\"step\": {}, \"epoch\": {}, \"loss\": {}, \"grad_norm\": {}, \"learning_rate\": {}, "
      "\"tokens\": {}, \"trained_tokens\": {}, \"tokens_per_second\": {}, \"step_seconds\": {}, "
      "\"peak_rss_bytes\": {}, \"gemm_share\": {}",
      m.step, number(m.epoch), number(m.loss), number(m.grad_norm), number(m.learning_rate),
      m.tokens, m.trained_tokens, number(m.tokens_per_second), number(m.step_seconds),
      m.peak_rss_bytes, number(m.gemm_share));
  if (!m.stats.empty()) {
    line += ", \"stats\": {";
    const char* separator = "";
    for (const auto& [name, values] : m.stats) {
      line += fmt::format("{}\"{}\": [", separator, name);
      for (size_t i = 0; i < values.size(); ++i) line += (i > 0 ? ", " : "") + number(values[i]);
      line += "]";
      separator = ", ";
    }
    line += "}";
  }
  return line + "}";
}

std::string format_metrics(const EvalMetrics& m) {
  return fmt::format("{{\"step\": {}, \"eval_loss\": {}, \"eval_tokens\": {}}}", m.step,
                     number(m.eval_loss), m.eval_tokens);
}

void cut_metrics(const std::filesystem::path& path, int64_t step) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = read_text_file(path);
  std::string kept;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string line = text.substr(begin, end + 1 - begin);
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) continue;
    if (row["step"].get<int64_t>() <= step) kept += line;
  }
  if (kept != text) write_file_atomically(path, kept);
}

}  // namespace graft
