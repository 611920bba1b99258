#include "train/state.h"

#include <algorithm>
#include <cmath>

#include "adapters/gguf_adapter.h"
#include "formats/packed_blocks.h"
#include "formats/quantize.h"
#include "models/layout.h"

namespace graft {

int64_t ModelState::parameter_count() const {
  int64_t count = 0;
  for (const VariableSpec& v : parameters) count += element_count(dense_shape(*this, v));
  return count;
}

int64_t ModelState::adapter_parameter_count() const {
  int64_t count = 0;
  for (const VariableSpec& v : adapter.variables) count += element_count(v.shape);
  return count;
}

namespace {

// A device may hold some of a packed matrix's rows, with all that belongs to them.
void hold_packed(VariableSpec& spec, const PackedLayout& layout) {
  spec.dtype = DType::kU8;
  spec.shape = layout.stored_shape();
  const bool by_rows = layout.by_rows() && spec.logical_axes.size() == 2;
  spec.logical_axes = by_rows ? std::vector<std::string>{spec.logical_axes[0], ""}
                              : std::vector<std::string>(spec.shape.size());
}

void hold_packed(ModelState& state, VariableSpec spec, const PackedLayout& layout, Tensor packed) {
  state.packed[spec.name] = layout;
  hold_packed(spec, layout);
  state.tensors.emplace(spec.name, std::move(packed));
  state.parameters.push_back(std::move(spec));
}

void quantize_parameter(ModelState& state, const BaseWeights& weights, const VariableSpec& spec,
                        const QuantizationRule& rule) {
  const std::string where = fmt::format("{}: {}", state.path.string(), spec.name);
  if (const auto stored = weights.packed(spec.name)) {
    if (stored->kind != PackedKind::kF16 && stored->kind != PackedKind::kBF16) {
      throw Error(fmt::format("the weight is already stored as {}", stored->scheme()), where,
                  "leave quantization out: the base is used as it is stored");
    }
  }
  Quantized quantized =
      quantize(weights.load(spec.name, spec.dtype), rule.layout, rule.bound, where);
  weights.release_pages(spec.name);
  state.quantization_error[spec.name] = quantized.relative_error();
  hold_packed(state, spec, rule.layout, std::move(quantized.packed));
}

}  // namespace

ModelState load_model_state(const std::filesystem::path& path, DType dtype,
                            const BaseOptions& options) {
  ModelState state;
  state.path = path;
  state.config = read_model_config(path);
  state.notes = state.config.notes;
  const BaseWeights weights = BaseWeights::open(path, state.config);
  state.notes.insert(state.notes.end(), weights.notes().begin(), weights.notes().end());
  QuantizationPlan plan;
  if (options.quantization.enabled()) {
    plan = plan_quantization(options.quantization, all_linears(state.config), "quantization");
  }
  for (VariableSpec spec : weights.parameters()) {
    const auto rule = plan.rules.find(spec.name);
    if (rule != plan.rules.end()) {
      quantize_parameter(state, weights, spec, rule->second);
      continue;
    }
    if (const auto layout = weights.packed(spec.name); layout && options.keep_packed) {
      hold_packed(state, spec, *layout, weights.load_packed(spec.name));
      continue;
    }
    spec.dtype = dtype;
    state.tensors.emplace(spec.name, weights.load(spec.name, dtype));
    state.parameters.push_back(std::move(spec));
  }
  return state;
}

PackedLayouts planned_layouts(const std::filesystem::path& path, const ModelConfig& config,
                              const QuantizationOptions& quantization) {
  PackedLayouts packed;
  if (is_gguf(path) || config.quantization.method != StoredQuantization::Method::kNone) {
    const BaseWeights weights = BaseWeights::open(path, config);
    for (const VariableSpec& spec : weights.parameters()) {
      if (const auto layout = weights.packed(spec.name)) packed[spec.name] = *layout;
    }
  }
  if (!quantization.enabled()) return packed;
  for (const auto& [name, rule] :
       plan_quantization(quantization, all_linears(config), "quantization").rules) {
    packed[name] = rule.layout;
  }
  return packed;
}

void hold_packed(std::vector<VariableSpec>& parameters, const PackedLayouts& packed) {
  for (VariableSpec& v : parameters) {
    const auto layout = packed.find(v.name);
    if (layout != packed.end()) hold_packed(v, layout->second);
  }
}

Tensor dense_parameter(const ModelState& state, const std::string& name) {
  const Tensor& held = state.tensors.at(name);
  const auto layout = state.packed.find(name);
  return layout == state.packed.end() ? held : expand_packed(layout->second, held);
}

Shape dense_shape(const ModelState& state, const VariableSpec& parameter) {
  const auto layout = state.packed.find(parameter.name);
  if (layout == state.packed.end()) return parameter.shape;
  return {layout->second.rows, layout->second.columns};
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
