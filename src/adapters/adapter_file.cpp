#include "adapters/adapter_file.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/random.h"
#include "formats/safetensors.h"

namespace graft {
namespace {

std::string file_key(const std::string& variable) {
  const bool is_a = variable.ends_with(".lora_A");
  GRAFT_CHECK(is_a || variable.ends_with(".lora_B"));
  return adapter_key(variable.substr(0, variable.size() - 7),
                     is_a ? AdapterPart::kA : AdapterPart::kB);
}

std::string variable_name(const AdapterKey& key) {
  return key.module + (key.part == AdapterPart::kA ? ".lora_A" : ".lora_B");
}

// "a, b, c and 4 more"
std::string shorten(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 3; ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > 3) text += fmt::format(" and {} more", names.size() - 3);
  return text;
}

void require_finite(const Tensor& tensor, const std::string& key, const std::string& where) {
  for (float v : tensor.span<float>()) {
    if (!std::isfinite(v)) throw Error(fmt::format("tensor \"{}\" holds {}", key, v), where);
  }
}

}  // namespace

Tensor initial_adapter_value(const VariableSpec& variable, uint64_t seed) {
  Tensor value = Tensor::zeros(DType::kF32, variable.shape);
  if (variable.name.ends_with(".lora_B")) return value;
  Philox random(seed, fnv1a_32(variable.name));
  const double bound = 1 / std::sqrt(static_cast<double>(variable.shape[1]));
  float* data = value.data<float>();
  for (int64_t i = 0; i < value.elements(); ++i) {
    data[i] = static_cast<float>((2 * random.uniform() - 1) * bound);
  }
  return value;
}

AdapterConfig read_adapter_folder_config(const std::filesystem::path& folder) {
  const std::filesystem::path config = folder / "adapter_config.json";
  if (!std::filesystem::exists(config)) {
    throw Error("the folder has no adapter_config.json", folder.string(),
                "give a PEFT adapter folder");
  }
  return read_adapter_config(config);
}

NamedTensors load_adapter(const std::filesystem::path& folder, const AdapterPlan& plan) {
  const std::filesystem::path path = folder / "adapter_model.safetensors";
  if (!std::filesystem::exists(path)) {
    throw Error("the folder has no adapter_model.safetensors", folder.string());
  }
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, std::string> stored;  // variable -> key
  std::vector<std::string> unexpected;
  for (const std::string& key : file.names()) {
    const auto parsed = parse_adapter_key(key);
    if (!parsed || !plan.sites.contains(parsed->module)) {
      unexpected.push_back(key);
    } else if (!stored.emplace(variable_name(*parsed), key).second) {
      throw Error(fmt::format("\"{}\" is given twice, the second time as \"{}\"",
                              variable_name(*parsed), key),
                  path.string());
    }
  }
  if (!unexpected.empty()) {
    throw Error(fmt::format("{} tensors belong to no adapted module of this model: {}",
                            unexpected.size(), shorten(unexpected)),
                path.string(), "check target_modules and the base model");
  }
  std::vector<std::string> missing;
  for (const VariableSpec& variable : plan.variables) {
    if (!stored.contains(variable.name)) missing.push_back(file_key(variable.name));
  }
  if (!missing.empty()) {
    throw Error(fmt::format("{} tensors are missing: {}", missing.size(), shorten(missing)),
                path.string(), "check target_modules and the base model");
  }
  NamedTensors tensors;
  for (const VariableSpec& variable : plan.variables) {
    const std::string& key = stored.at(variable.name);
    const Tensor value = file.tensor(key);
    if (value.shape() != variable.shape) {
      throw Error(fmt::format("tensor \"{}\" has shape {}, this model and configuration ask for {}",
                              key, to_string(value.shape()), to_string(variable.shape)),
                  path.string(), "check r, rank_pattern and the base model");
    }
    if (!is_float(value.dtype())) {
      throw Error(fmt::format("tensor \"{}\" is {}, not a float", key, dtype_name(value.dtype())),
                  path.string());
    }
    Tensor wide = value.as(DType::kF32).clone();
    require_finite(wide, key, path.string());
    tensors.emplace(variable.name, std::move(wide));
  }
  return tensors;
}

std::vector<std::pair<std::string, Tensor>> adapter_file_tensors(const AdapterPlan& plan,
                                                                 const NamedTensors& tensors,
                                                                 DType dtype) {
  std::vector<std::pair<std::string, Tensor>> stored;
  for (const VariableSpec& variable : plan.variables) {
    const auto it = tensors.find(variable.name);
    GRAFT_CHECK(it != tensors.end(), "no value for {}", variable.name);
    stored.emplace_back(file_key(variable.name), it->second.as(dtype));
  }
  std::sort(stored.begin(), stored.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return stored;
}

void save_adapter(const std::filesystem::path& folder, const AdapterConfig& config,
                  const AdapterPlan& plan, const NamedTensors& tensors, DType dtype) {
  make_directories(folder);
  write_safetensors(folder / "adapter_model.safetensors",
                    adapter_file_tensors(plan, tensors, dtype), {{"format", "pt"}});
  write_adapter_config(folder / "adapter_config.json", config);
}

}  // namespace graft
