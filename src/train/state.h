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
#include "adapters/quantization.h"
#include "adapters/targets.h"
#include "models/config.h"
#include "models/weights.h"

namespace graft {

struct ModelState {
  std::filesystem::path path;
  ModelConfig config;
  // As held here: of packed matrices, u8 in the layout's stored shape.
  std::vector<VariableSpec> parameters;
  PackedLayouts packed;                              // of the parameters that are held packed
  std::map<std::string, double> quantization_error;  // |W - Q| / |W| of those quantised on loading
  AdapterConfig adapter_config;
  AdapterPlan adapter;  // without sites: no adapter
  std::map<std::string, Tensor> tensors;
  std::vector<std::string> notes;  // what a user should be told

  int64_t parameter_count() const;
  int64_t adapter_parameter_count() const;
};

// What load_model_state makes of matrices.
struct BaseOptions {
  QuantizationOptions quantization = {};
  // Those that the file holds packed stay so; false: they are expanded.
  bool keep_packed = true;
};

// Reads the base model's weights as `dtype`, norm weights too; packed ones as they are stored, and
// those that the options name quantised, one at a time. Raises Error where a weight that is to be
// quantised is already stored so.
ModelState load_model_state(const std::filesystem::path& path, DType dtype,
                            const BaseOptions& options = {});

// Which matrices such a state would hold packed, without reading them. Of a folder without weights,
// those that are to be quantised alone.
PackedLayouts planned_layouts(const std::filesystem::path& path, const ModelConfig& config,
                              const QuantizationOptions& quantization);
// Turns the parameters that are packed into what holds them.
void hold_packed(std::vector<VariableSpec>& parameters, const PackedLayouts& packed);

// A parameter as a dense matrix, whatever it is held as: itself, or expanded to f32.
Tensor dense_parameter(const ModelState& state, const std::string& name);
// Its shape and number of values as a dense matrix.
Shape dense_shape(const ModelState& state, const VariableSpec& parameter);

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
