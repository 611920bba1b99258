#include "adapters/gguf_adapter.h"

#include <cmath>
#include <optional>

#include "formats/gguf_writer.h"
#include "models/gguf_layout.h"

namespace graft {
namespace {

constexpr const char* kSuffixA = ".lora_a";
constexpr const char* kSuffixB = ".lora_b";

// scale * rank of a module: what a reader's alpha must be for it.
double alpha_of(const LoraSite& site) { return site.scale * static_cast<double>(site.rank); }

bool same_alpha(double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); }

// What remains to be folded into lora_b where no one alpha serves all modules.
std::map<std::string, double> leftover_factors(const AdapterPlan& plan, double alpha) {
  std::map<std::string, double> factors;
  for (const auto& [module, site] : plan.sites) {
    if (!same_alpha(alpha_of(site), alpha)) factors[module] = alpha_of(site) / alpha;
  }
  return factors;
}

Tensor scaled(const Tensor& tensor, double factor) {
  Tensor result = tensor.clone();
  for (int64_t i = 0; i < result.elements(); ++i) {
    float& value = result.data<float>()[i];
    value = static_cast<float>(static_cast<double>(value) * factor);
  }
  return result;
}

int32_t file_type(DType dtype) {
  constexpr int32_t kAllF32 = 0, kMostlyF16 = 1, kMostlyBF16 = 32;
  return dtype == DType::kF16 ? kMostlyF16 : dtype == DType::kBF16 ? kMostlyBF16 : kAllF32;
}

class Reader {
 public:
  Reader(const GgufFile& file, const ModelConfig& config) : file_(file), config_(config) {
    for (LinearModule& module : all_linears(config)) {
      std::string name = gguf_tensor_name(module.name + ".weight");
      modules_.emplace(std::move(name), std::move(module));
    }
  }

  GgufAdapter read() {
    check_kind();
    alpha_ = file_.find_f32("adapter.lora.alpha").value_or(0);
    if (!std::isfinite(alpha_)) fail(fmt::format("adapter.lora.alpha is {}", alpha_));
    for (const GgufTensor& tensor : file_.tensors()) check_name(tensor);
    for (const LinearModule& module : all_linears(config_)) add(module);
    if (adapter_.plan.sites.empty()) fail("holds no adapted module");
    return std::move(adapter_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem, const std::string& remedy = "") const {
    throw Error(problem, file_.name(), remedy);
  }

  void check_kind() const {
    if (file_.find_string("general.type").value_or("") != "adapter") {
      fail("is no adapter (general.type)");
    }
    const std::string type = file_.find_string("adapter.type").value_or("");
    if (type != "lora") fail(fmt::format("adapter.type \"{}\" is not supported", type));
    const std::string architecture = file_.get_string("general.architecture");
    if (architecture != gguf_architecture(config_)) {
      fail(fmt::format("is an adapter of the architecture {}, the model's is {}", architecture,
                       gguf_architecture(config_)),
           "give the model that it was made for");
    }
  }

  static std::optional<std::string> weight_of(const std::string& name) {
    for (const char* suffix : {kSuffixA, kSuffixB}) {
      if (name.ends_with(suffix)) return name.substr(0, name.size() - 7);
    }
    return std::nullopt;
  }

  void check_name(const GgufTensor& tensor) const {
    const auto weight = weight_of(tensor.name);
    if (weight && modules_.contains(*weight)) return;
    fail(fmt::format("tensor \"{}\" belongs to no linear layer of this model", tensor.name),
         "give the model that it was made for");
  }

  void add(const LinearModule& module) {
    const std::string weight = gguf_tensor_name(module.name + ".weight");
    const GgufTensor* a = file_.find(weight + kSuffixA);
    const GgufTensor* b = file_.find(weight + kSuffixB);
    if (a == nullptr && b == nullptr) return;
    if (a == nullptr || b == nullptr) fail(fmt::format("\"{}\" has one factor of two", weight));
    const int64_t rank = a->shape.size() == 2 ? a->shape[0] : 0;
    check_shape(*a, {rank, module.in});
    check_shape(*b, {module.out, rank});
    if (rank < 1) fail(fmt::format("tensor \"{}\" has no rank", a->name));
    const double scale = alpha_ == 0 ? 1 : static_cast<double>(alpha_) / static_cast<double>(rank);
    adapter_.plan.sites.emplace(module.name, LoraSite{rank, scale, 0});
    const std::string leaf = module.name.substr(module.name.rfind('.') + 1);
    ++adapter_.plan.modules_per_target[leaf];
    add_variable(module.name + ".lora_A", {"lora_rank", module.in_axis}, file_.dequantize(*a));
    add_variable(module.name + ".lora_B", {module.out_axis, "lora_rank"},
                 from_gguf_rows(config_, module.name + ".weight", file_.dequantize(*b)));
  }

  void check_shape(const GgufTensor& tensor, const Shape& wanted) const {
    if (tensor.shape == wanted) return;
    fail(fmt::format("tensor \"{}\" has shape {}, this model asks for {}", tensor.name,
                     to_string(tensor.shape), to_string(wanted)),
         "give the model that it was made for");
  }

  void add_variable(const std::string& name, std::vector<std::string> axes, Tensor value) {
    for (const float v : value.span<float>()) {
      if (!std::isfinite(v)) fail(fmt::format("\"{}\" holds {}", name, v));
    }
    adapter_.plan.variables.push_back(
        {name, VariableKind::kAdapter, DType::kF32, value.shape(), std::move(axes)});
    adapter_.tensors.emplace(name, std::move(value));
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  std::map<std::string, LinearModule> modules_;  // by the name of the weight in GGUF files
  float alpha_ = 0;
  GgufAdapter adapter_;
};

}  // namespace

void write_gguf_adapter(const std::filesystem::path& path, const ModelConfig& config,
                        const AdapterPlan& plan, const NamedTensors& tensors, DType dtype) {
  GRAFT_CHECK(!plan.sites.empty());
  // Readers take an alpha of 0 for "no scaling", so a scale of 0 goes into lora_b.
  double alpha = 1;
  for (const auto& [module, site] : plan.sites) {
    if (alpha_of(site) == 0) continue;
    alpha = alpha_of(site);
    break;
  }
  const std::map<std::string, double> factors = leftover_factors(plan, alpha);
  GgufMetadata metadata;
  metadata.set_string("general.architecture", gguf_architecture(config));
  metadata.set_string("general.type", "adapter");
  metadata.set_string("adapter.type", "lora");
  metadata.set_f32("adapter.lora.alpha", static_cast<float>(alpha));
  metadata.set_u32("general.file_type", static_cast<uint32_t>(file_type(dtype)));

  std::vector<GgufDeclaration> declarations;
  const GgmlType type = ggml_type_of(dtype);
  const auto stored_name = [](const VariableSpec& v) {
    const std::string weight = gguf_tensor_name(v.name.substr(0, v.name.size() - 7) + ".weight");
    return weight + (v.name.ends_with(".lora_A") ? kSuffixA : kSuffixB);
  };
  for (const VariableSpec& v : plan.variables) {
    declarations.push_back({stored_name(v), type, v.shape});
  }
  GgufWriter writer(path, metadata, std::move(declarations));
  for (const VariableSpec& v : plan.variables) {
    Tensor value = tensors.at(v.name).as(DType::kF32);
    if (v.name.ends_with(".lora_B")) {
      const std::string module = v.name.substr(0, v.name.size() - 7);
      value = to_gguf_rows(config, module + ".weight", value);
      if (const auto found = factors.find(module); found != factors.end()) {
        value = scaled(value, found->second);
      }
    }
    writer.add(stored_name(v), value.as(dtype));
  }
  writer.commit();
}

GgufAdapter read_gguf_adapter(const GgufFile& file, const ModelConfig& config) {
  return Reader(file, config).read();
}

GgufAdapter read_gguf_adapter(const std::filesystem::path& path, const ModelConfig& config) {
  return read_gguf_adapter(GgufFile::open(path), config);
}

}  // namespace graft
