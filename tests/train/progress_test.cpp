#include "train/progress.h"

#include <gtest/gtest.h>

namespace graft {
namespace {

StepMetrics at(int64_t step, double share = 0.8) {
  return {.step = step, .loss = 2.5, .tokens_per_second = 150, .gemm_share = share};
}

TEST(Progress, PlainLinesAreFewAndWhole) {
  std::string shown;
  Progress progress(4, Progress::Style::kPlain, [&](std::string_view text) { shown += text; });
  progress.update(at(1), 10);
  progress.update(at(2), 10.5);  // too soon after the line before
  progress.note("eval loss 2.25");
  progress.update(at(3), 30);
  progress.update(at(4, 0), 40);
  progress.finish();
  EXPECT_EQ(shown,
            "step 1/4  loss 2.5000  150 tokens/s  80% of the GEMM limit  30 s left\n"
            "eval loss 2.25\n"
            "step 3/4  loss 2.5000  150 tokens/s  80% of the GEMM limit  10 s left\n"
            "step 4/4  loss 2.5000  150 tokens/s  40 s in all\n");
}

TEST(Progress, ATerminalsLineIsRedrawn) {
  std::string shown;
  {
    Progress progress(2, Progress::Style::kTerminal, [&](std::string_view text) { shown += text; });
    progress.update(at(1), 1);
    progress.note("eval loss 2.25");
    EXPECT_EQ(
        shown,
        "\r\x1b[Kstep 1/2 [############............]  loss 2.5000  150 tokens/s  80% of the GEMM "
        "limit  1 s left\r\x1b[Keval loss 2.25\nstep 1/2 [############............]  loss 2.5000  "
        "150 tokens/s  80% of the GEMM limit  1 s left");
  }
  EXPECT_TRUE(shown.ends_with("\n"));  // whatever comes next begins a line
}

TEST(Progress, Durations) {
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(187), "3:07");
  EXPECT_EQ(format_duration(3729), "1:02:09");
}

}  // namespace
}  // namespace graft
