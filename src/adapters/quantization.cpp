#include "adapters/quantization.h"

#include <algorithm>
#include <bit>
#include <set>

#include "adapters/targets.h"
#include "formats/quantize.h"

namespace graft {
namespace {

PackedKind kind_of(QuantizationScheme scheme, bool double_quant) {
  switch (scheme) {
    case QuantizationScheme::kInt8: return PackedKind::kInt8;
    case QuantizationScheme::kInt4: return PackedKind::kInt4;
    case QuantizationScheme::kFp8: return PackedKind::kFp8;
    default: return double_quant ? PackedKind::kNf4Double : PackedKind::kNf4;
  }
}

// What bitsandbytes has of a scheme and what it has not.
void check_bitsandbytes(const QuantizationOptions& options, QuantizationScheme scheme,
                        const std::string& where) {
  if (scheme == QuantizationScheme::kInt4 || scheme == QuantizationScheme::kFp8) {
    throw Error(fmt::format("layout bitsandbytes has no {}", quantization_scheme_name(scheme)),
                where, "leave quantization.layout out, or set it to qwix");
  }
  if (scheme == QuantizationScheme::kInt8 && options.block_size != 0) {
    throw Error("layout bitsandbytes has int8 by rows alone", where,
                "leave quantization.block_size out, or set quantization.layout to qwix");
  }
}

}  // namespace

std::string_view quantization_scheme_name(QuantizationScheme scheme) {
  switch (scheme) {
    case QuantizationScheme::kNone: return "none";
    case QuantizationScheme::kNf4: return "nf4";
    case QuantizationScheme::kInt8: return "int8";
    case QuantizationScheme::kInt4: return "int4";
    case QuantizationScheme::kFp8: return "fp8";
  }
  return "";
}

std::string_view quantization_layout_name(QuantizationLayout layout) {
  switch (layout) {
    case QuantizationLayout::kAuto: return "auto";
    case QuantizationLayout::kBitsAndBytes: return "bitsandbytes";
    case QuantizationLayout::kQwix: return "qwix";
  }
  return "";
}

QuantizationRule quantization_rule(const QuantizationOptions& options, QuantizationScheme scheme,
                                   const LinearModule& module, const std::string& where) {
  const bool nf4 = scheme == QuantizationScheme::kNf4;
  QuantizationLayout layout = options.layout;
  if (layout == QuantizationLayout::kAuto) {
    layout = nf4 ? QuantizationLayout::kBitsAndBytes : QuantizationLayout::kQwix;
  }
  const bool qwix = layout == QuantizationLayout::kQwix;
  if (!qwix) check_bitsandbytes(options, scheme, where);
  if (options.double_quant && (!nf4 || qwix)) {
    throw Error("double quantisation is nf4's, in the layout of bitsandbytes", where,
                "leave quantization.double_quant out");
  }
  const bool by_rows =
      (scheme == QuantizationScheme::kInt8 || scheme == QuantizationScheme::kFp8) &&
      options.block_size == 0;
  int64_t block = options.block_size;
  if (block == 0) block = nf4 ? 64 : 32;
  if (by_rows) block = module.in;
  if (!by_rows &&
      (block < 16 || block > 4096 || !std::has_single_bit(static_cast<uint64_t>(block)))) {
    throw Error(fmt::format("a block of {} values is not supported", block), where,
                "set quantization.block_size to a power of two from 16 to 4096");
  }
  if (qwix && module.in % block != 0) {
    throw Error(fmt::format("tiles of {} do not divide the contracted dimension {} of {}", block,
                            module.in, module.name),
                where,
                "choose another quantization.block_size, list the module in quantization.keep, or "
                "use the layout of bitsandbytes");
  }
  return {{kind_of(scheme, options.double_quant && nf4 && !qwix), block, module.out, module.in},
          scale_bound(kind_of(scheme, false), qwix)};
}

QuantizationPlan plan_quantization(const QuantizationOptions& options,
                                   const std::vector<LinearModule>& linears,
                                   const std::string& where) {
  QuantizationPlan plan;
  std::vector<std::string> chosen;
  if (options.modules.empty()) {
    for (const LinearModule& module : linears) chosen.push_back(module.name);
  } else {
    chosen = select_modules(options.modules, linears, "quantization.modules");
  }
  std::set<std::string> kept;
  if (!options.keep.empty()) {
    const auto names = select_modules(options.keep, linears, "quantization.keep");
    kept.insert(names.begin(), names.end());
  }
  const std::set<std::string> wanted(chosen.begin(), chosen.end());
  for (const LinearModule& module : linears) {
    if (!wanted.contains(module.name) || kept.contains(module.name)) continue;
    plan.rules[module.name + ".weight"] = quantization_rule(options, options.scheme, module, where);
  }
  return plan;
}

}  // namespace graft
