#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/error.h"

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

MetricsWriter::MetricsWriter(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw Error(fmt::format("cannot write: {}", std::strerror(errno)), path_.string());
}

MetricsWriter::~MetricsWriter() { ::close(fd_); }

void MetricsWriter::append(std::string line) {
  line += '\n';
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t n = ::write(fd_, line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(fmt::format("cannot write: {}", std::strerror(errno)), path_.string());
    written += static_cast<size_t>(n);
  }
}

}  // namespace graft
