#pragma once
// Progress of a run for a person: one line that is redrawn on a terminal, plain lines elsewhere.
//
//   Progress progress(total_steps, isatty(2) ? Progress::Style::kTerminal :
//   Progress::Style::kPlain,
//                     [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr);
//                     });
//   progress.update(metrics, seconds_since_start);   // after each step
//   progress.note("eval loss 2.3");                  // a line of its own, above the bar
//   progress.finish();
//
// Plain lines come at the first and last step, and between them no more often than every two
// seconds.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "train/metrics.h"

namespace graft {

class Progress {
 public:
  enum class Style : uint8_t { kPlain, kTerminal };
  using Sink =
      std::function<void(std::string_view)>;  // takes text as it is, without adding line ends

  Progress(int64_t total_steps, Style style, Sink sink);
  ~Progress();  // leaves the terminal on a fresh line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `elapsed`: seconds since the first step began; the time left is extrapolated from it.
  void update(const StepMetrics& metrics, double elapsed);
  void note(std::string_view line);
  void finish();

 private:
  std::string describe(const StepMetrics& metrics, double elapsed) const;

  int64_t total_steps_;
  Style style_;
  Sink sink_;
  double last_shown_ = -1e9;
  bool drawn_ = false;  // a bar stands on the terminal's last line
  std::string bar_;
};

// "42 s", "3:07", "1:02:09"
std::string format_duration(double seconds);

}  // namespace graft
