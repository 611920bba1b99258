// Reading of any layout: what each name says, and where the layers of stacks lie.

#include <set>
#include <string_view>
#include <utility>

#include "formats/peft.h"
#include "models/layout.h"
#include "models/parameter_layout.h"
#include "models/parameter_leaf.h"

namespace graft {
namespace {

struct Place {
  const ParameterLeaf* leaf = nullptr;
  std::optional<int64_t> layer;  // none: a stack of all layers
  bool in_layers = false;
};

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t slash = 0; slash != std::string_view::npos; begin = slash + 1) {
    slash = text.find('/', begin);
    parts.push_back(text.substr(begin, slash == std::string_view::npos ? slash : slash - begin));
  }
  return parts;
}

std::optional<int64_t> layer_number(std::string_view text) {
  if (text.empty() || text.size() > 6) return std::nullopt;
  int64_t number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    number = 10 * number + (c - '0');
  }
  return number;
}

class Reader {
 public:
  Reader(const ModelConfig& config, std::optional<int64_t> scan_axis)
      : config_(config),
        scan_axis_(scan_axis),
        in_layers_(layer_leaves(config)),
        elsewhere_(other_leaves(config)) {}

  ParameterTree read(const ParameterTree& tree) {
    std::vector<std::pair<std::string, Place>> stacks;
    for (const auto& [name, array] : tree) {
      if (name.find('/') == std::string::npos) {
        take_hugging_face(name, array);
        continue;
      }
      const Place place = find(name);
      if (place.in_layers && !place.layer) stacks.emplace_back(name, place);
      else take_one(name, place, array);
    }
    if (!stacks.empty()) take_stacks(stacks, tree);
    return std::move(result_);
  }

 private:
  [[noreturn]] static void fail(const std::string& problem, const std::string& remedy = "") {
    throw Error(problem, "parameters", remedy);
  }

  Place find(const std::string& name) const {
    std::vector<std::string_view> parts = split(name);
    size_t first = 0;
    while (first < parts.size() && (parts[first] == "params" || parts[first] == "base")) ++first;
    parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(first));
    const auto rest = [&](size_t from) {
      std::string text;
      for (size_t i = from; i < parts.size(); ++i) {
        text += text.empty() ? "" : "/";
        text += parts[i];
      }
      return text;
    };
    for (const ParameterLeaf& leaf : elsewhere_) {
      if (leaf.maxtext == rest(0)) return {&leaf, std::nullopt, false};
    }
    Place place;
    place.in_layers = true;
    size_t next = 2;
    if (parts.size() >= 2 && parts[0] == "decoder") {
      if (parts[1].starts_with("layers_")) {
        place.layer = layer_number(parts[1].substr(7));
        if (!place.layer) fail(fmt::format("\"{}\" names no layer", name));
      } else if (parts[1] != "layers") {
        place.layer = layer_number(parts[1]);
        if (!place.layer) next = parts.size();  // matches no leaf
      } else if (parts.size() > 2) {
        place.layer = layer_number(parts[2]);
        if (place.layer) next = 3;
      }
      for (const ParameterLeaf& leaf : in_layers_) {
        if (leaf.maxtext == rest(next)) place.leaf = &leaf;
      }
    }
    if (place.leaf == nullptr) fail(fmt::format("\"{}\" is no parameter of this model", name));
    if (place.layer && *place.layer >= layer_count(config_)) {
      fail(fmt::format("\"{}\" is of layer {}; the model has {}", name, *place.layer,
                       layer_count(config_)));
    }
    return place;
  }

  void insert(const std::string& hugging_face, const std::string& name, Tensor array) {
    const auto [it, fresh] = origin_.emplace(hugging_face, name);
    if (!fresh) {
      fail(fmt::format("\"{}\" and \"{}\" are both {}", it->second, name, hugging_face),
           "remove one of the two");
    }
    result_.emplace(hugging_face, std::move(array));
  }

  std::string hugging_face_name(const Place& place, int64_t layer) const {
    return place.in_layers ? layer_prefix(layer) + place.leaf->hugging_face
                           : place.leaf->hugging_face;
  }

  // The axes that an array of one layer may have: heads split, or flat. None: it fits neither.
  static std::optional<Shape> match(const ParameterLeaf& leaf, const Shape& shape) {
    const bool is_a = leaf.hugging_face.ends_with(".lora_A");
    const bool is_b = leaf.hugging_face.ends_with(".lora_B");
    if (shape.empty()) return std::nullopt;
    const int64_t rank = is_a ? shape.back() : is_b ? shape.front() : 0;
    if ((is_a || is_b) && rank < 1) return std::nullopt;
    const Shape whole = with_rank(leaf.axes, rank);
    if (shape == whole) return whole;
    const Shape flat = hugging_face_shape(leaf, whole);
    if (leaf.transposed && shape == Shape{flat[1], flat[0]}) return whole;
    if (!leaf.transposed && shape == flat) return whole;
    return std::nullopt;
  }

  void take_hugging_face(const std::string& name, const Tensor& array) {
    std::string plain = name;
    if (const auto key = parse_adapter_key(name)) {
      plain = key->module + (key->part == AdapterPart::kA ? ".lora_A" : ".lora_B");
    }
    for (const ParameterLeaf& leaf : elsewhere_) {
      if (leaf.hugging_face != plain) continue;
      axes_for(leaf, array.shape(), name);
      insert(plain, name, array);
      return;
    }
    const std::string prefix = "model.layers.";
    const size_t dot = plain.find('.', prefix.size());
    if (plain.starts_with(prefix) && dot != std::string::npos) {
      const auto layer = layer_number(plain.substr(prefix.size(), dot - prefix.size()));
      for (const ParameterLeaf& leaf : in_layers_) {
        if (!layer || *layer >= layer_count(config_)) break;
        if (layer_prefix(*layer) + leaf.hugging_face != plain) continue;
        axes_for(leaf, array.shape(), name);
        insert(plain, name, array);
        return;
      }
    }
    fail(fmt::format("\"{}\" is no parameter of this model", name));
  }

  void take_one(const std::string& name, const Place& place, const Tensor& array) {
    const auto axes = match(*place.leaf, array.shape());
    if (!axes) {
      fail(fmt::format("\"{}\" has shape {}, which the model has not", name,
                       to_string(array.shape())));
    }
    insert(hugging_face_name(place, place.layer.value_or(0)), name,
           to_hugging_face(*place.leaf, array, *axes));
  }

  // Where the layers may lie in a stack, if its scan axis is `axis`.
  std::optional<size_t> stack_axis(const Place& place, const Shape& shape, int64_t axis) const {
    if (shape.size() < 2) return std::nullopt;
    const size_t at = axis_limited(axis, shape.size() - 1);
    if (shape[at] != layer_count(config_)) return std::nullopt;
    Shape single = shape;
    single.erase(single.begin() + static_cast<std::ptrdiff_t>(at));
    return match(*place.leaf, single) ? std::optional(at) : std::nullopt;
  }

  // The places of the layers in every stack, for one scan axis; empty if it fits not all.
  std::vector<size_t> places_for(const std::vector<std::pair<std::string, Place>>& stacks,
                                 const ParameterTree& tree, int64_t axis) const {
    std::vector<size_t> places;
    for (const auto& [name, place] : stacks) {
      const auto at = stack_axis(place, tree.at(name).shape(), axis);
      if (!at) return {};
      places.push_back(*at);
    }
    return places;
  }

  void take_stacks(const std::vector<std::pair<std::string, Place>>& stacks,
                   const ParameterTree& tree) {
    constexpr int64_t kMostAxes = 5;
    std::set<std::vector<size_t>> found;
    for (int64_t axis = 0; axis < kMostAxes; ++axis) {
      if (scan_axis_ && axis != *scan_axis_) continue;
      const std::vector<size_t> places = places_for(stacks, tree, axis);
      if (!places.empty()) found.insert(places);
    }
    if (found.empty()) {
      fail(fmt::format("the stacked arrays (\"{}\", ...) do not hold {} layers on one axis",
                       stacks[0].first, layer_count(config_)));
    }
    if (found.size() > 1) {
      fail(fmt::format("the shapes of the stacked arrays (\"{}\", ...) do not tell on which axis "
                       "the layers are",
                       stacks[0].first),
           "give the scan axis");
    }
    for (size_t i = 0; i < stacks.size(); ++i) {
      const std::string& name = stacks[i].first;
      const Place& place = stacks[i].second;
      for (int64_t layer = 0; layer < layer_count(config_); ++layer) {
        const Tensor one =
            slice_array(tree.at(name), (*found.begin())[i], static_cast<size_t>(layer));
        insert(hugging_face_name(place, layer), name,
               to_hugging_face(*place.leaf, one, *match(*place.leaf, one.shape())));
      }
    }
  }

  const ModelConfig& config_;
  std::optional<int64_t> scan_axis_;
  std::vector<ParameterLeaf> in_layers_, elsewhere_;
  ParameterTree result_;
  std::map<std::string, std::string> origin_;  // Hugging Face name -> the name it came from
};

}  // namespace

ParameterTree from_layout(const ParameterTree& tree, const ModelConfig& config,
                          std::optional<int64_t> scan_axis) {
  return Reader(config, scan_axis).read(tree);
}

}  // namespace graft
