#pragma once
// The variables of a run by name: the base model's parameters, its adapter, the optimiser's
// moments.
//
//   ModelState state = load_model_state("model", DType::kF32);
//   attach_adapter(state, adapter_config, seed);         // fresh
//   attach_adapter_folder(state, "runs/first/adapter");  // or as somebody saved it

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "adapters/adapter_file.h"
#include "adapters/targets.h"
#include "models/config.h"
#include "models/weights.h"

namespace graft {

struct ModelState {
  std::filesystem::path path;
  ModelConfig config;
  std::vector<VariableSpec> parameters;  // dtype: as held here
  AdapterConfig adapter_config;
  AdapterPlan adapter;  // without sites: no adapter
  std::map<std::string, Tensor> tensors;
  std::vector<std::string> notes;  // what a user should be told

  int64_t parameter_count() const;
  int64_t adapter_parameter_count() const;
};

// Reads the base model's weights as `dtype`; norm weights too.
ModelState load_model_state(const std::filesystem::path& path, DType dtype);

// Adds the adapter's variables. Raises Error if nothing matches, or as plan_adapters and
// load_adapter do. An adapter may also be a .gguf file, as llama.cpp keeps them.
void attach_adapter(ModelState& state, const AdapterConfig& config, uint64_t seed);
void attach_adapter_folder(ModelState& state, const std::filesystem::path& folder);

// The parameters of the base model that hold values that are not finite, by name: what to look at
// when a loss is not.
std::vector<std::string> not_finite_parameters(const ModelState& state);
// "the model's own tensor "model.norm.weight" holds values that are not finite", or empty.
std::string describe_not_finite(const ModelState& state);

// Reads every page of tensors that are views of mapped files, so that what is resident is known
// before a plan is compared with what is measured.
void touch_mapped_pages(const ModelState& state);

}  // namespace graft
