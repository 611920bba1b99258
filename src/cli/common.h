#pragma once
// What several commands share: the options --dtype, --threads and --executor, and checks of values
// that are made while the command line is read (a wrong one is exit code 2):
//
//   command->add_option("--adapter", options->adapter, "...")->check(not_empty());
//   command->add_option("--limit", options->limit, "...")->check(whole_number(0, 1000));

#include <cstdint>
#include <memory>
#include <string>

#include "train/recipe.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace graft {

// Adds --dtype, --threads and --executor to a command, with the values and defaults of the recipe's
// section `compute`. A value that the recipe would refuse is a wrong command line.
void add_compute_options(CLI::App& command, const std::shared_ptr<ComputeOptions>& options);

// A path or name. An empty one is a shell variable that was not set, not a wish for the default.
CLI::Validator not_empty();
CLI::Validator whole_number(uint64_t least, uint64_t most);
CLI::Validator number_between(double least, double most);  // both included
CLI::Validator calendar_date();                            // YYYY-MM-DD
CLI::Validator json_object();
CLI::Validator utf8_text();

}  // namespace graft
