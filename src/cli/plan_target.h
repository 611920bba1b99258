#pragma once
// graft plan for a machine that is not here: its own compiler's verdict.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/recipe.h"

namespace graft {

struct TargetPlanOptions {
  std::string target;      // "v5e:4x4"
  std::string save, load;  // files of the compiled program; empty: none
  bool suggest = true;     // where it does not fit, compile changed recipes until one does
  // The recipe with further overrides.
  std::function<Recipe(const std::vector<std::string>&)> recipe;
};

nlohmann::ordered_json plan_target(const TargetPlanOptions& options);

// The step of a recipe as StableHLO, sharded for a target; "cpu": for one device.
std::string target_program(const std::string& target, const Recipe& recipe);

}  // namespace graft
