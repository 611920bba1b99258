#pragma once
// What a run would need, from its recipe and the model's config.json alone: no weight is read.
//
//   std::unique_ptr<PlannedStep> planned = plan_step(load_recipe("recipe.yaml"), {});
//   const NativeMemory memory = native_memory(*planned, planned->shape);
//   largest_batch(*planned, available_memory_bytes());
//
// The native executor's memory is exact: its plan is made, as for a run, and not used. Where the
// recipe's data can be read, the shape is that of the run's largest batch; else rows are taken to
// be data.max_length long and trained throughout.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapters/targets.h"
#include "sharding/resolve.h"
#include "train/compute.h"
#include "train/recipe.h"
#include "train/step.h"

namespace graft {

struct PlanOptions {
  int64_t devices = 0;  // that the mesh must have; 0: as many as it says, 1 without a mesh
  // Of an accelerator, `auto` is bf16 where the model's configuration says that it is stored so.
  bool accelerator = false;
};

// Stays where it is made: the options refer to the configuration.
struct PlannedStep {
  Recipe recipe;
  ModelConfig config;
  Mesh mesh;
  Compute compute;
  AdapterPlan adapter;
  StepOptions options;
  BatchShape shape;          // over all devices
  std::string shape_source;  // how it was found
  int64_t parameters = 0, trained_parameters = 0;

  // Rows of a micro-batch are split over this many devices.
  int64_t data_parallel() const { return mesh.data_parallel(); }
};

// Raises Error where the recipe could not run: no adapter target matches, a mesh does not fit.
std::unique_ptr<PlannedStep> plan_step(Recipe recipe, const PlanOptions& plan_options);

// Every variable of the step with its sharding, then the batch.
ShardingTable sharding_table(const PlannedStep& planned, const BatchShape& shape);

// Bytes by part on the native executor, all exact.
struct NativeMemory {
  int64_t weights = 0;  // the base model's, as held in memory
  int64_t adapters = 0;
  int64_t optimizer = 0;    // moments of what is trained
  int64_t batch = 0;        // one batch, and scalars
  int64_t constants = 0;    // literals of the program
  int64_t activations = 0;  // kept from forward to backward
  int64_t workspace = 0;    // whatever else is live at once
  int64_t total() const {
    return weights + adapters + optimizer + batch + constants + activations + workspace;
  }
};
NativeMemory native_memory(const PlannedStep& planned, const BatchShape& shape);

// The step's shape with another batch (rows of a micro-batch over all devices) or length; trained
// positions in proportion.
BatchShape with_batch(const BatchShape& shape, int64_t batch_size);
BatchShape with_length(const BatchShape& shape, int64_t sequence_length);

// The most that fits into `bytes`: rows in a micro-batch, tokens in a row (a multiple of 64; at
// most what the model was made for). 0: nothing does.
int64_t largest_batch(const PlannedStep& planned, int64_t bytes);
int64_t longest_sequence(const PlannedStep& planned, int64_t bytes);

// The largest n in [1, most] that `fits` holds for, given that it holds up to some n and no
// further; 0 if for none.
int64_t largest_that_fits(int64_t most, const std::function<bool(int64_t)>& fits);

}  // namespace graft
