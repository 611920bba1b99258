#include "train/params_file.h"

#include <set>

#include "formats/safetensors.h"
#include "models/layout.h"

namespace graft {
namespace {

constexpr const char* kScanAxis = "scan_axis";
constexpr const char* kAdapterConfig = "adapter_config";

bool is_low_rank(const std::string& name) {
  return name.ends_with(".lora_A") || name.ends_with(".lora_B");
}

}  // namespace

void write_params_file(const std::filesystem::path& path, const ModelConfig& config,
                       const ParameterLayout& layout, const BaseWeights& base,
                       const AdapterPlan& plan, const AdapterConfig& adapter,
                       const std::map<std::string, Tensor>& tensors, std::optional<DType> dtype) {
  std::map<std::string, const VariableSpec*> variables;
  for (const VariableSpec& v : base.parameters()) variables[v.name] = &v;
  for (const VariableSpec& v : plan.variables) variables[v.name] = &v;
  const auto shape_of = [&](const std::string& name) -> std::optional<Shape> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second->shape);
  };
  const std::vector<LayoutEntry> entries = layout_entries(config, layout, shape_of);
  std::vector<SafetensorsDeclaration> declarations;
  for (const LayoutEntry& entry : entries) {
    const DType stored = variables.at(entry.sources[0])->dtype;
    declarations.push_back({entry.name, dtype.value_or(stored), entry.shape});
  }
  SafetensorsMetadata metadata = {{"format", "pt"}};
  const bool stacked = layout.naming == ParameterLayout::Naming::kMaxText &&
                       layout.layers == ParameterLayout::Layers::kStacked;
  if (stacked) metadata[kScanAxis] = fmt::format("{}", layout.scan_axis);
  if (!plan.sites.empty()) metadata[kAdapterConfig] = format_adapter_config(adapter);
  SafetensorsWriter writer(path, declarations, metadata);
  for (size_t i = 0; i < entries.size(); ++i) {
    const DType type = declarations[i].dtype;
    const auto value = [&](const std::string& name) {
      return is_low_rank(name) ? tensors.at(name).as(type) : base.load(name, type);
    };
    writer.add(entries[i].name, assemble(entries[i], config, layout, value));
  }
  writer.commit();
}

ParamsFile read_params_file(const std::filesystem::path& path, const ModelConfig& config) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::optional<int64_t> scan_axis;
  const SafetensorsMetadata& metadata = file.metadata();
  if (const auto found = metadata.find(kScanAxis);
      found != metadata.end() && found->second.size() == 1) {
    scan_axis = found->second[0] - '0';
  }
  ParameterTree tree;
  for (const std::string& name : file.names()) tree.emplace(name, file.tensor(name));
  ParamsFile result;
  try {
    result.tensors = from_layout(tree, config, scan_axis);
  } catch (const Error& error) {
    throw Error(error.problem(), path.string(), error.remedy());
  }
  for (const VariableSpec& v : base_parameters(config)) {
    if (result.tensors.contains(v.name)) continue;
    throw Error(fmt::format("holds no {}", v.name), path.string());
  }
  if (const auto found = metadata.find(kAdapterConfig); found != metadata.end()) {
    result.adapter = parse_adapter_config(found->second, path.string());
  }
  return result;
}

}  // namespace graft
