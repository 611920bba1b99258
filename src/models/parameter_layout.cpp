#include "models/parameter_layout.h"

#include "models/layout.h"
#include "models/parameter_leaf.h"

namespace graft {
namespace {

using Layers = ParameterLayout::Layers;
using Naming = ParameterLayout::Naming;
using Wrapper = ParameterLayout::Wrapper;

std::string wrapper_prefix(Wrapper wrapper) {
  switch (wrapper) {
    case Wrapper::kNone: return "";
    case Wrapper::kParams: return "params/";
    case Wrapper::kParamsTwice: return "params/params/";
    case Wrapper::kBase: return "base/";
  }
  return "";
}

std::string layer_key(Layers layers, int64_t layer) {
  switch (layers) {
    case Layers::kStacked: return "layers";
    case Layers::kUnderscore: return fmt::format("layers_{}", layer);
    case Layers::kNested: return fmt::format("layers/{}", layer);
    case Layers::kNumber: return fmt::format("{}", layer);
  }
  return "";
}

bool is_of_a_layer(const std::string& hugging_face) {
  return hugging_face.starts_with("model.layers.");
}

ParameterLeaf leaf_of(const std::string& source, const ModelConfig& config) {
  const bool layered = is_of_a_layer(source);
  const std::vector<ParameterLeaf> leaves = layered ? layer_leaves(config) : other_leaves(config);
  for (const ParameterLeaf& leaf : leaves) {
    if (layered ? source.ends_with("." + leaf.hugging_face) : source == leaf.hugging_face) {
      return leaf;
    }
  }
  GRAFT_CHECK(false, "no layout for {}", source);
  return {};
}

}  // namespace

std::vector<LayoutEntry> layout_entries(
    const ModelConfig& config, const ParameterLayout& layout,
    const std::function<std::optional<Shape>(const std::string& name)>& shape_of) {
  const bool plain = layout.naming == Naming::kHuggingFace;
  const std::string prefix = plain ? "" : wrapper_prefix(layout.wrapper);
  std::vector<LayoutEntry> entries;
  for (const ParameterLeaf& leaf : other_leaves(config)) {
    const auto shape = shape_of(leaf.hugging_face);
    if (!shape) continue;
    const Shape axes = axes_for(leaf, *shape, leaf.hugging_face);
    entries.push_back({plain ? leaf.hugging_face : prefix + leaf.maxtext,
                       plain ? *shape : axes,
                       {leaf.hugging_face}});
  }
  for (const ParameterLeaf& leaf : layer_leaves(config)) {
    LayoutEntry whole{prefix + "decoder/layers/" + leaf.maxtext, {}, {}};
    for (int64_t i = 0; i < layer_count(config); ++i) {
      const std::string source = layer_prefix(i) + leaf.hugging_face;
      const auto shape = shape_of(source);
      if (!shape) continue;
      const Shape axes = axes_for(leaf, *shape, source);
      if (plain) {
        entries.push_back({source, *shape, {source}});
      } else if (layout.layers != Layers::kStacked) {
        entries.push_back({prefix + "decoder/" + layer_key(layout.layers, i) + "/" + leaf.maxtext,
                           axes,
                           {source}});
      } else if (whole.sources.empty() || whole.shape == axes) {
        whole.shape = axes;
        whole.sources.push_back(source);
      } else {
        throw Error(fmt::format("\"{}\" has shape {}, other layers {}", source, to_string(axes),
                                to_string(whole.shape)),
                    "parameters",
                    "layers of different shapes do not stack: use an unrolled layout");
      }
    }
    if (plain || layout.layers != Layers::kStacked || whole.sources.empty()) continue;
    if (static_cast<int64_t>(whole.sources.size()) != layer_count(config)) {
      throw Error(fmt::format("{} of {} layers have a {}", whole.sources.size(),
                              layer_count(config), leaf.hugging_face),
                  "parameters", "a stack needs all of them: use an unrolled layout");
    }
    const size_t axis = axis_limited(layout.scan_axis, whole.shape.size());
    whole.shape.insert(whole.shape.begin() + static_cast<std::ptrdiff_t>(axis),
                       layer_count(config));
    entries.push_back(std::move(whole));
  }
  return entries;
}

Tensor assemble(const LayoutEntry& entry, const ModelConfig& config, const ParameterLayout& layout,
                const std::function<Tensor(const std::string& name)>& value) {
  if (layout.naming == Naming::kHuggingFace) return value(entry.sources[0]);
  const ParameterLeaf leaf = leaf_of(entry.sources[0], config);
  std::vector<Tensor> arrays;
  for (const std::string& source : entry.sources) {
    const Tensor array = value(source);
    arrays.push_back(to_maxtext(leaf, array, axes_for(leaf, array.shape(), source)));
  }
  const bool stacked = layout.layers == Layers::kStacked && is_of_a_layer(entry.sources[0]);
  if (!stacked) return arrays[0];
  return stack_arrays(arrays, axis_limited(layout.scan_axis, arrays[0].shape().size()));
}

ParameterTree to_layout(const ParameterTree& tree, const ModelConfig& config,
                        const ParameterLayout& layout) {
  const ParameterTree plain = from_layout(tree, config);
  const auto shape_of = [&](const std::string& name) -> std::optional<Shape> {
    const auto found = plain.find(name);
    return found == plain.end() ? std::nullopt : std::optional(found->second.shape());
  };
  ParameterTree result;
  for (const LayoutEntry& entry : layout_entries(config, layout, shape_of)) {
    result.emplace(entry.name, assemble(entry, config, layout,
                                        [&](const std::string& name) { return plain.at(name); }));
  }
  return result;
}

ParameterTree translate(const ParameterTree& tree, const ModelConfig& config,
                        const ParameterLayout& layout, std::optional<int64_t> scan_axis) {
  return to_layout(from_layout(tree, config, scan_axis), config, layout);
}

}  // namespace graft
