#pragma once
// What differs between the recipe of a checkpoint and the one that is to go on from it, key by key,
// and whether a run may go on all the same.

#include <string>
#include <string_view>
#include <vector>

#include "train/recipe.h"

namespace graft {

struct RecipeDifference {
  std::string key, was, is;
  bool allowed = false;
  std::string effect;  // "the order of the rows is the same"; empty where there is nothing to add
};

// Both resolved. How long a run is, how often it saves and reports, and what it runs on may change;
// what decides its numbers may not, but for accumulation that makes the same batch otherwise.
std::vector<RecipeDifference> recipe_differences(const Recipe& was, const Recipe& is);

// "training.max_steps was 10, is 20 (allowed)"
std::string describe(const RecipeDifference& difference);

// Of what decides a run's numbers: equal for recipes that differ in allowed keys only.
std::string recipe_hash(const Recipe& recipe);

}  // namespace graft
