#include "train/quantized_folder.h"

#include <nlohmann/json.hpp>
#include <set>

#include "formats/quantize.h"
#include "models/layout.h"
#include "train/model_folder.h"

namespace graft {
namespace {

// config.json's name of an element type.
std::string type_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return "bfloat16";
    case DType::kF16: return "float16";
    default: return "float32";
  }
}

nlohmann::ordered_json quantization_config(const QuantizationOptions& options,
                                           const std::vector<std::string>& skipped, DType dtype) {
  nlohmann::ordered_json skip = nullptr;
  if (!skipped.empty()) {
    skip = skipped;
    skip.push_back("lm_head");
  }
  return {{"_load_in_4bit", true},
          {"_load_in_8bit", false},
          {"bnb_4bit_compute_dtype", type_name(dtype)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", options.double_quant},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", skip},
          {"llm_int8_threshold", 6.0},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"quant_method", "bitsandbytes"}};
}

class Writer {
 public:
  Writer(std::filesystem::path folder, const std::filesystem::path& model,
         const QuantizationOptions& options)
      : folder_(std::move(folder)),
        model_(model),
        options_(options),
        config_(read_model_config(model)),
        weights_(BaseWeights::open(model, config_)) {}

  QuantizedFolder execute() {
    const QuantizationPlan plan = plan_quantization(options_, all_linears(config_), "--scheme");
    for (const VariableSpec& spec : weights_.parameters()) {
      const auto rule = plan.rules.find(spec.name);
      if (rule == plan.rules.end()) {
        tensors_.push_back({spec.name, spec.dtype, spec.shape});
      } else {
        quantize_matrix(spec, rule->second);
      }
    }
    std::vector<std::string> skipped;
    for (const LinearModule& linear : all_linears(config_)) {
      if (!plan.rules.contains(linear.name + ".weight")) skipped.push_back(linear.name);
    }
    std::optional<TextModel> text;
    if (is_gguf(model_)) text = load_text_model(model_);
    write_description(folder_, model_, config_, text ? &*text : nullptr, std::nullopt,
                      quantization_config(options_, skipped, compute_dtype()).dump());
    write_shards(folder_, tensors_, [this](const std::string& name) { return value(name); });
    return std::move(result_);
  }

 private:
  DType compute_dtype() const { return weights_.parameters()[0].dtype; }  // the embedding's

  void quantize_matrix(const VariableSpec& spec, const QuantizationRule& rule) {
    const std::string where = fmt::format("{}: {}", model_.string(), spec.name);
    if (const auto stored = weights_.packed(spec.name);
        stored && stored->kind != PackedKind::kF16 && stored->kind != PackedKind::kBF16) {
      throw Error(fmt::format("the weight is already stored as {}", stored->scheme()), where,
                  "quantise from the unquantised model");
    }
    Quantized quantized =
        quantize(weights_.load(spec.name, spec.dtype), rule.layout, rule.bound, where);
    weights_.release_pages(spec.name);
    ++result_.modules;
    result_.packed_bytes += rule.layout.bytes();
    result_.error[spec.name] = quantized.relative_error();
    PackedTensor& packed = packed_[spec.name];
    packed = {rule.layout, std::move(quantized.packed)};
    for (const auto& [name, tensor] : parts(spec.name)) {
      tensors_.push_back({name, tensor.dtype(), tensor.shape()});
      part_of_[name] = spec.name;
    }
    parts_.clear();
  }

  const std::map<std::string, Tensor>& parts(const std::string& weight) {
    if (parts_weight_ != weight || parts_.empty()) {
      parts_.clear();
      for (auto& [name, tensor] :
           bitsandbytes_tensors(weight, packed_.at(weight), type_name(compute_dtype()))) {
        parts_[name] = std::move(tensor);
      }
      parts_weight_ = weight;
    }
    return parts_;
  }

  Tensor value(const std::string& name) {
    const auto part = part_of_.find(name);
    if (part != part_of_.end()) return parts(part->second).at(name);
    if (released_ != "") weights_.release_pages(released_);
    released_ = name;  // it is written when the next one is asked for
    for (const VariableSpec& spec : weights_.parameters()) {
      if (spec.name == name) return weights_.load(name, spec.dtype);
    }
    GRAFT_CHECK(false, "no tensor {}", name);
    return {};
  }

  std::filesystem::path folder_;
  const std::filesystem::path& model_;
  const QuantizationOptions& options_;
  ModelConfig config_;
  BaseWeights weights_;
  std::map<std::string, PackedTensor> packed_;
  std::vector<SafetensorsDeclaration> tensors_;
  std::map<std::string, std::string> part_of_;
  std::map<std::string, Tensor> parts_;  // of the weight being written
  std::string parts_weight_, released_;
  QuantizedFolder result_;
};

}  // namespace

QuantizedFolder write_quantized_folder(const std::filesystem::path& folder,
                                       const std::filesystem::path& model,
                                       const QuantizationOptions& options) {
  return Writer(folder, model, options).execute();
}

}  // namespace graft
