#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace graft {

ScheduleLength schedule_length(const TrainingOptions& options, int64_t total_steps) {
  ScheduleLength length{options.warmup_steps, total_steps};
  if (options.warmup_ratio > 0) {
    length.warmup_steps =
        static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * options.warmup_ratio));
  }
  return length;
}

double schedule_factor(Schedule schedule, int64_t completed_steps, ScheduleLength length) {
  if (schedule == Schedule::kConstant) return 1;
  const auto step = static_cast<double>(completed_steps);
  const auto warmup = static_cast<double>(length.warmup_steps);
  const auto total = static_cast<double>(length.total_steps);
  if (step < warmup) return step / warmup;
  switch (schedule) {
    case Schedule::kLinear: return std::max(0.0, (total - step) / std::max(1.0, total - warmup));
    case Schedule::kCosine: {
      const double progress = (step - warmup) / std::max(1.0, total - warmup);
      return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
    }
    default: return 1;
  }
}

}  // namespace graft
