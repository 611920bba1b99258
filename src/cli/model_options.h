#pragma once
// The options that every command which runs a model shares: --model, --adapter, --executor,
// --dtype,
// --threads.

#include <memory>
#include <string>

#include "train/compute.h"
#include "train/state.h"

namespace CLI {
class App;
}

namespace graft {

struct ModelOptions {
  std::string model;
  std::string adapter;  // empty: none
  std::shared_ptr<ComputeOptions> compute = std::make_shared<ComputeOptions>();
};

void add_model_options(CLI::App& command, ModelOptions& options);

struct LoadedModel {
  Compute compute;
  ModelState state;
};
LoadedModel load_model(const ModelOptions& options);

}  // namespace graft
