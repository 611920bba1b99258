#pragma once
// How other programs name and shape the same parameters, and translation between them.
//
// Two schools: Hugging Face files name every parameter of every layer
// ("model.layers.7.self_attn.q_proj.weight", [out, in]); MaxText keeps a tree, here as names joined
// with slashes ("params/params/decoder/layers/self_attention/query/kernel"), whose kernels are
// [in, out] with heads as an axis of their own, and whose layers are stacked on one axis or lie
// under a key each. Low-rank factors are <module>.lora_A [rank, in] and .lora_B [out, rank] there,
// kernel_lora_a [in..., rank] and kernel_lora_b [rank, out...] here.
//
// All functions are pure, on maps of names to arrays; nothing here reads a file. Only names, axes
// and shapes change, never a value: MaxText's habit of keeping query kernels divided by
// sqrt(head_dim) is not part of a layout.
//
//   const ParameterTree tree = to_layout(weights, config, {.naming = Naming::kMaxText});
//   const ParameterTree again = from_layout(tree, config);  // Hugging Face names; layout is found
//
// An array is a Tensor; moving an axis copies it.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "models/config.h"

namespace graft {

using ParameterTree = std::map<std::string, Tensor>;

struct ParameterLayout {
  enum class Naming : uint8_t { kHuggingFace, kMaxText };
  // What stands before "decoder/": nothing, "params/", "params/params/", or "base/".
  enum class Wrapper : uint8_t { kNone, kParams, kParamsTwice, kBase };
  // "decoder/layers/..." stacked, or a key for each: "decoder/layers_0", "decoder/layers/0",
  // "decoder/0".
  enum class Layers : uint8_t { kStacked, kUnderscore, kNested, kNumber };

  Naming naming = Naming::kMaxText;
  Wrapper wrapper = Wrapper::kParamsTwice;
  Layers layers = Layers::kStacked;
  int64_t scan_axis = 1;  // of a stacked array; a vector's is limited to its rank

  friend bool operator==(const ParameterLayout&, const ParameterLayout&) = default;
};

// A parameter of a layout and what it is made of: one array, or one of each layer.
struct LayoutEntry {
  std::string name;
  Shape shape;
  std::vector<std::string> sources;  // Hugging Face names
};

// The entries of a model in a layout, in order. `present` says which Hugging Face names there are
// (adapters may be on some layers only, which cannot be stacked: raises Error).
std::vector<LayoutEntry> layout_entries(
    const ModelConfig& config, const ParameterLayout& layout,
    const std::function<std::optional<Shape>(const std::string& name)>& shape_of);

// The array of an entry, from those of its sources.
Tensor assemble(const LayoutEntry& entry, const ModelConfig& config, const ParameterLayout& layout,
                const std::function<Tensor(const std::string& name)>& value);

// From Hugging Face names; every name must be one of the model's.
ParameterTree to_layout(const ParameterTree& tree, const ModelConfig& config,
                        const ParameterLayout& layout);

// To Hugging Face names, from any layout. Layer keys of several forms may be mixed and are merged.
// Raises Error for a name that belongs to nothing, an array given twice (under two keys of one
// layer, or under two wrappers), a shape that fits no layer of the model, and a stack whose axis
// cannot be told from its shapes (give `scan_axis`).
ParameterTree from_layout(const ParameterTree& tree, const ModelConfig& config,
                          std::optional<int64_t> scan_axis = std::nullopt);

ParameterTree translate(const ParameterTree& tree, const ModelConfig& config,
                        const ParameterLayout& layout,
                        std::optional<int64_t> scan_axis = std::nullopt);

}  // namespace graft
