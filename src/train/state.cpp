#include "train/state.h"

#include <algorithm>
#include <cmath>

#include "adapters/gguf_adapter.h"
#include "models/layout.h"

namespace graft {

int64_t ModelState::parameter_count() const {
  int64_t count = 0;
  for (const VariableSpec& v : parameters) count += element_count(v.shape);
  return count;
}

int64_t ModelState::adapter_parameter_count() const {
  int64_t count = 0;
  for (const VariableSpec& v : adapter.variables) count += element_count(v.shape);
  return count;
}

ModelState load_model_state(const std::filesystem::path& path, DType dtype) {
  ModelState state;
  state.path = path;
  state.config = read_model_config(path);
  state.notes = state.config.notes;
  const BaseWeights weights = BaseWeights::open(path, state.config);
  state.notes.insert(state.notes.end(), weights.notes().begin(), weights.notes().end());
  for (VariableSpec spec : weights.parameters()) {
    spec.dtype = dtype;
    state.tensors.emplace(spec.name, weights.load(spec.name, dtype));
    state.parameters.push_back(std::move(spec));
  }
  return state;
}

namespace {

void plan(ModelState& state, const AdapterConfig& config, const std::string& where) {
  state.adapter_config = config;
  state.adapter = plan_adapters(config, all_linears(state.config));
  if (!state.adapter.sites.empty()) return;
  std::string names;
  for (const LinearModule& linear : layer_layout(state.config, 0).linears) {
    names += (names.empty() ? "" : ", ") + linear.name.substr(linear.name.rfind('.') + 1);
  }
  throw Error("no module of the model matches the adapter's target_modules", where,
              "its linear layers are " + names);
}

}  // namespace

void attach_adapter(ModelState& state, const AdapterConfig& config, uint64_t seed) {
  plan(state, config, "lora.target_modules");
  for (const VariableSpec& v : state.adapter.variables) {
    state.tensors.insert_or_assign(v.name, initial_adapter_value(v, seed));
  }
}

void attach_adapter_folder(ModelState& state, const std::filesystem::path& folder) {
  if (is_gguf(folder)) {
    GgufAdapter adapter = read_gguf_adapter(folder, state.config);
    state.adapter_config = {};
    state.adapter = std::move(adapter.plan);
    for (auto& [name, tensor] : adapter.tensors) {
      state.tensors.insert_or_assign(name, std::move(tensor));
    }
    return;
  }
  plan(state, read_adapter_folder_config(folder), (folder / "adapter_config.json").string());
  for (auto& [name, tensor] : load_adapter(folder, state.adapter)) {
    state.tensors.insert_or_assign(name, std::move(tensor));
  }
}

std::vector<std::string> not_finite_parameters(const ModelState& state) {
  std::vector<std::string> names;
  for (const VariableSpec& v : state.parameters) {
    const Tensor values = state.tensors.at(v.name).as(DType::kF32);
    const float* begin = values.data<float>();
    const bool finite = std::all_of(begin, begin + values.elements(),
                                    [](float value) { return std::isfinite(value); });
    if (!finite) names.push_back(v.name);
  }
  return names;
}

std::string describe_not_finite(const ModelState& state) {
  const std::vector<std::string> names = not_finite_parameters(state);
  if (names.empty()) return "";
  const std::string more = names.size() > 1 ? fmt::format(" (and {} more)", names.size() - 1) : "";
  return fmt::format("the model's own tensor \"{}\"{} holds values that are not finite",
                     names.front(), more);
}

void touch_mapped_pages(const ModelState& state) {
  constexpr size_t kPage = 4096;
  unsigned sum = 0;
  for (const auto& [name, tensor] : state.tensors) {
    const std::byte* bytes = tensor.bytes();
    for (size_t i = 0; i < tensor.size_bytes(); i += kPage) sum += static_cast<unsigned>(bytes[i]);
  }
  // Keeps the reads: the sum cannot be known beforehand.
  [[maybe_unused]] volatile unsigned keep = sum;
}

}  // namespace graft
