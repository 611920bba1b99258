#pragma once
// Which weights of a base model are quantised, and how: the recipe's `quantization`.
//
//   QuantizationOptions options{.scheme = QuantizationScheme::kNf4};
//   QuantizationPlan plan = plan_quantization(options, all_linears(config));
//   plan.layouts.at("model.layers.0.mlp.up_proj.weight");
//
// A base that is already stored quantised stays as it is; asking for another scheme is refused.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/packed.h"
#include "formats/peft.h"
#include "models/layout.h"

namespace graft {

enum class QuantizationScheme : uint8_t { kNone, kNf4, kInt8, kInt4, kFp8 };
enum class QuantizationLayout : uint8_t { kAuto, kBitsAndBytes, kQwix };
std::string_view quantization_scheme_name(QuantizationScheme scheme);  // "nf4"
std::string_view quantization_layout_name(QuantizationLayout layout);  // "bitsandbytes"

struct QuantizationOptions {
  QuantizationScheme scheme = QuantizationScheme::kNone;
  int64_t block_size = 0;  // 0: 64 for nf4, 32 for int4 and tiles, a row for int8 and fp8
  bool double_quant = false;
  // bitsandbytes: blocks along the flattened matrix; int8 with the bound 127. qwix: tiles along the
  // contracted axis, which they must divide; integers with the whole range of codes. auto:
  // bitsandbytes for nf4, qwix for the others.
  QuantizationLayout layout = QuantizationLayout::kAuto;
  ModuleSelection modules;  // empty: every linear layer that can carry an adapter
  ModuleSelection keep;     // of those, the ones that stay as they are

  bool enabled() const { return scheme != QuantizationScheme::kNone; }
};

// How one matrix becomes packed.
struct QuantizationRule {
  PackedLayout layout;
  double bound = 0;  // formats/quantize.h
};

struct QuantizationPlan {
  std::map<std::string, QuantizationRule> rules;  // by parameter name
};

// Raises Error for options that contradict each other, a tile that does not divide a dimension
// (naming the module), and entries of `modules` or `keep` that match nothing.
QuantizationPlan plan_quantization(const QuantizationOptions& options,
                                   const std::vector<LinearModule>& linears,
                                   const std::string& where);

// The rule of one module for a scheme.
QuantizationRule quantization_rule(const QuantizationOptions& options, QuantizationScheme scheme,
                                   const LinearModule& module, const std::string& where);

}  // namespace graft
