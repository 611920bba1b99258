#pragma once
// What several commands share: the options --dtype, --threads and --executor.

#include <memory>
#include <string>

#include "train/recipe.h"

namespace CLI {
class App;
}

namespace graft {

// Adds --dtype, --threads and --executor to a command, with the values and defaults of the recipe's
// section `compute`. A value that the recipe would refuse is a wrong command line.
void add_compute_options(CLI::App& command, const std::shared_ptr<ComputeOptions>& options);

}  // namespace graft
