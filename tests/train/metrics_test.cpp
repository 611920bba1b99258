#include "train/metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "support/temporary.h"
#include "train/process.h"

namespace graft {
namespace {

TEST(Metrics, LinesHoldTheSameNumbers) {
  testing::TemporaryFolder folder;
  StepMetrics step{.step = 3,
                   .epoch = 0.25,
                   .loss = 4.681234567890123,
                   .grad_norm = 1.0 / 3,
                   .learning_rate = 2e-4,
                   .tokens = 5'000'000'000,
                   .trained_tokens = 77,
                   .tokens_per_second = 151.5,
                   .step_seconds = 0.5,
                   .peak_rss_bytes = 1 << 30,
                   .gemm_share = 0.81,
                   .stats = {{"activation_rms", {1.5, 2}}}};
  {
    MetricsWriter writer(folder / "metrics.jsonl");
    writer.write(step);
    // There at once, not when the run ends.
    EXPECT_FALSE(read_text_file(folder / "metrics.jsonl").empty());
    writer.write(EvalMetrics{3, 2.5000000001, 7300});
  }
  std::istringstream lines(read_text_file(folder / "metrics.jsonl"));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first.at("step"), 3);
  EXPECT_EQ(first.at("loss").get<double>(), step.loss);
  EXPECT_EQ(first.at("grad_norm").get<double>(), step.grad_norm);
  EXPECT_EQ(first.at("tokens").get<int64_t>(), step.tokens);
  EXPECT_EQ(first.at("stats").at("activation_rms"), nlohmann::json({1.5, 2}));
  for (const char* key : {"epoch", "learning_rate", "trained_tokens", "tokens_per_second",
                          "step_seconds", "peak_rss_bytes", "gemm_share"}) {
    EXPECT_TRUE(first.contains(key)) << key;
  }
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line),
            nlohmann::json({{"step", 3}, {"eval_loss", 2.5000000001}, {"eval_tokens", 7300}}));
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(Metrics, WhatIsNotFiniteIsStillJson) {
  StepMetrics step;
  step.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(nlohmann::json::parse(format_metrics(step)).at("loss").is_null());
}

TEST(Metrics, AFolderThatIsNotThereIsNamed) {
  testing::TemporaryFolder folder;
  try {
    MetricsWriter writer(folder / "none/metrics.jsonl");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("none/metrics.jsonl"), std::string::npos);
  }
}

TEST(Process, MemoryIsMeasured) {
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  std::vector<char> block(64 << 20, 1);
  EXPECT_GE(resident_bytes() - before + 0, 60 << 20) << block[0];
  // The kernel counts pages in batches: the two may differ by a few, and reading them takes some.
  constexpr int64_t kSlack = 1 << 20;
  EXPECT_GE(peak_resident_bytes() + kSlack, resident_bytes());
}

}  // namespace
}  // namespace graft
