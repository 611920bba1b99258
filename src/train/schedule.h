#pragma once
// Learning-rate schedules, with the names and values of transformers (optimization.py).
//
// The rate of step i, counted from 0, is the schedule after i completed steps: a warm-up begins at
// 0.
//
//   const ScheduleLength length = schedule_length(recipe.training, total_steps);
//   const double rate = learning_rate * schedule_factor(Schedule::kCosine, step, length);

#include <cstdint>

#include "train/recipe.h"

namespace graft {

struct ScheduleLength {
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
};

// warmup_steps, or warmup_ratio of all steps rounded up.
ScheduleLength schedule_length(const TrainingOptions& options, int64_t total_steps);

// The rate as a share of its peak, in [0, 1].
double schedule_factor(Schedule schedule, int64_t completed_steps, ScheduleLength length);

}  // namespace graft
