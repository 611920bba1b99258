#include "train/quantization_audit.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/layout.h"

namespace graft {
namespace {

bool is_apart(const std::string& name) { return name == kEmbeddingName || name == kHeadName; }

struct SchemeTotal {
  int64_t modules = 0, bytes = 0, values = 0;
};

}  // namespace

std::map<std::string, int64_t> bytes_by_scheme(const ModelState& state) {
  std::map<std::string, int64_t> bytes;
  for (const VariableSpec& v : state.parameters) {
    const auto layout = state.packed.find(v.name);
    const std::string scheme =
        layout == state.packed.end() ? std::string(dtype_name(v.dtype)) : layout->second.scheme();
    bytes[scheme] += static_cast<int64_t>(state.tensors.at(v.name).size_bytes());
  }
  return bytes;
}

void audit_quantization(Audit& audit, const ModelState& state) {
  if (state.packed.empty()) return;
  std::map<std::string, SchemeTotal> schemes;
  nlohmann::ordered_json apart = nlohmann::ordered_json::object();
  SchemeTotal all;
  for (const auto& [name, layout] : state.packed) {
    if (is_apart(name)) {
      apart[name] = layout.scheme();
      continue;
    }
    for (SchemeTotal* total : {&schemes[layout.scheme()], &all}) {
      ++total->modules;
      total->bytes += layout.bytes();
      total->values += layout.elements();
    }
  }
  nlohmann::ordered_json listed = nlohmann::ordered_json::object();
  std::string text;
  for (const auto& [scheme, total] : schemes) {
    listed[scheme] = {{"modules", total.modules}, {"bytes", total.bytes}};
    text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", total.modules, scheme);
  }
  const double share =
      all.values > 0 ? static_cast<double>(all.bytes) / (4.0 * static_cast<double>(all.values)) : 0;
  double worst = 0, sum = 0;
  nlohmann::ordered_json errors = nlohmann::ordered_json::object();
  for (const auto& [name, error] : state.quantization_error) {
    errors[name] = error;
    worst = std::max(worst, error);
    sum += error;
  }
  std::string message = fmt::format("{} modules packed: {}; {:.1f} MB, {:.4f} of f32", all.modules,
                                    text, static_cast<double>(all.bytes) / 1e6, share);
  if (!errors.empty()) {
    message += fmt::format("; relative error {:.4f} in the mean, {:.4f} at most",
                           sum / static_cast<double>(errors.size()), worst);
  }
  for (const auto& [name, scheme] : apart.items()) {
    message += fmt::format("; {} stays in {}", name, scheme.get<std::string>());
  }
  audit.add("quantization", AuditStatus::kOk, message);
  audit.quantization = nlohmann::ordered_json{{"modules", all.modules}, {"schemes", listed},
                                              {"bytes", all.bytes},     {"share_of_f32", share},
                                              {"stored_apart", apart},  {"relative_error", errors}}
                           .dump();
}

}  // namespace graft
