#include "train/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace graft {
namespace {

constexpr double kPlainInterval = 2;  // seconds between plain lines
constexpr double kTerminalInterval = 0.1;
constexpr int kBarWidth = 24;
constexpr std::string_view kClearLine = "\r\x1b[K";

std::string bar(int64_t done, int64_t total) {
  const auto filled = static_cast<int>(done * kBarWidth / std::max<int64_t>(total, 1));
  std::string text(static_cast<size_t>(std::clamp(filled, 0, kBarWidth)), '#');
  text.resize(kBarWidth, '.');
  return "[" + text + "]";
}

}  // namespace

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(int64_t total_steps, Style style, Sink sink)
    : total_steps_(total_steps), style_(style), sink_(std::move(sink)) {}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {
    // The run's own error matters more than a terminal that is gone.
  }
}

std::string Progress::describe(const StepMetrics& metrics, double elapsed) const {
  std::string text = fmt::format("step {}/{}", metrics.step, total_steps_);
  if (style_ == Style::kTerminal) text += " " + bar(metrics.step, total_steps_);
  text += fmt::format("  loss {:.4f}  {:.0f} tokens/s", metrics.loss, metrics.tokens_per_second);
  if (metrics.gemm_share > 0) {
    text += fmt::format("  {:.0f}% of the GEMM limit", 100 * metrics.gemm_share);
  }
  if (metrics.step > 0 && metrics.step < total_steps_) {
    const double left = elapsed / static_cast<double>(metrics.step) *
                        static_cast<double>(total_steps_ - metrics.step);
    text += fmt::format("  {} left", format_duration(left));
  } else {
    text += fmt::format("  {} in all", format_duration(elapsed));
  }
  return text;
}

void Progress::update(const StepMetrics& metrics, double elapsed) {
  const double interval = style_ == Style::kTerminal ? kTerminalInterval : kPlainInterval;
  const bool edge = metrics.step <= 1 || metrics.step >= total_steps_;
  if (!edge && elapsed - last_shown_ < interval) return;
  last_shown_ = elapsed;
  if (style_ == Style::kPlain) {
    sink_(describe(metrics, elapsed) + "\n");
    return;
  }
  bar_ = describe(metrics, elapsed);
  drawn_ = true;
  sink_(fmt::format("{}{}", kClearLine, bar_));
}

void Progress::note(std::string_view line) {
  if (drawn_) {
    sink_(fmt::format("{}{}\n{}", kClearLine, line, bar_));
  } else {
    sink_(fmt::format("{}\n", line));
  }
}

void Progress::finish() {
  if (!drawn_) return;
  drawn_ = false;
  sink_("\n");
}

}  // namespace graft
