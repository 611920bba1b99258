#include "train/schedule.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/shared.h"

namespace graft {
namespace {

// The goldens were made by transformers' schedulers.
TEST(Schedule, CosineIsThatOfTheGolden) {
  GRAFT_SHARED_OR_SKIP(file, "golden/llama_a/meta.json");
  const auto rates =
      nlohmann::json::parse(read_text_file(file)).at("lr").get<std::vector<double>>();
  ASSERT_EQ(rates.size(), 10u);
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(5e-3 * schedule_factor(Schedule::kCosine, static_cast<int64_t>(i), {2, 10}),
                rates[i], 1e-15)
        << i;
  }
}

TEST(Schedule, LinearIsThatOfTheGolden) {
  GRAFT_SHARED_OR_SKIP(file, "golden/llama_a_train/meta.json");
  const auto rates =
      nlohmann::json::parse(read_text_file(file)).at("full_lr").get<std::vector<double>>();
  ASSERT_EQ(rates.size(), 5u);
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(1e-3 * schedule_factor(Schedule::kLinear, static_cast<int64_t>(i), {2, 6}),
                rates[i], 1e-15)
        << i;
  }
}

TEST(Schedule, ConstantSchedules) {
  EXPECT_EQ(schedule_factor(Schedule::kConstant, 0, {0, 4}), 1);
  EXPECT_EQ(schedule_factor(Schedule::kConstant, 9, {0, 4}), 1);
  EXPECT_EQ(schedule_factor(Schedule::kConstantWithWarmup, 0, {4, 8}), 0);
  EXPECT_EQ(schedule_factor(Schedule::kConstantWithWarmup, 1, {4, 8}), 0.25);
  EXPECT_EQ(schedule_factor(Schedule::kConstantWithWarmup, 4, {4, 8}), 1);
  EXPECT_EQ(schedule_factor(Schedule::kConstantWithWarmup, 99, {4, 8}), 1);
}

TEST(Schedule, EndsAtZeroAndStaysThere) {
  for (const Schedule schedule : {Schedule::kLinear, Schedule::kCosine}) {
    EXPECT_EQ(schedule_factor(schedule, 10, {0, 10}), 0);
    EXPECT_EQ(schedule_factor(schedule, 0, {0, 10}), 1);
    // Warm-up as long as the run.
    EXPECT_EQ(schedule_factor(schedule, 2, {4, 4}), 0.5);
  }
  EXPECT_EQ(schedule_factor(Schedule::kLinear, 12, {0, 10}), 0);
}

TEST(Schedule, RatioIsRoundedUp) {
  TrainingOptions options;
  options.warmup_ratio = 0.03;
  EXPECT_EQ(schedule_length(options, 101).warmup_steps, 4);
  options.warmup_ratio = 0;
  options.warmup_steps = 7;
  EXPECT_EQ(schedule_length(options, 101).warmup_steps, 7);
}

}  // namespace
}  // namespace graft
