#include "sharding/resolve.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace graft {
namespace {

bool contains(const std::vector<std::string>& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Which dimension uses a mesh axis already.
std::optional<size_t> user_of(const PartitionSpec& spec, const std::string& axis) {
  for (size_t d = 0; d < spec.dimensions.size(); ++d) {
    if (contains(spec.dimensions[d], axis)) return d;
  }
  return std::nullopt;
}

void report(std::vector<LostAxis>* lost, size_t dimension, std::string logical, std::string axis,
            std::string reason) {
  if (lost == nullptr) return;
  lost->push_back({"", dimension, std::move(logical), std::move(axis), std::move(reason)});
}

std::vector<std::string> axes_of(const AxisRule& rule, const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const std::string& axis : rule.mesh_axes) {
    if (mesh.has(axis)) axes.push_back(axis);
  }
  return axes;
}

// What one dimension gets of the rules, given what others hold.
std::vector<std::string> axes_for(const std::string& logical, size_t dimension,
                                  const PartitionSpec& taken, const AxisRules& rules,
                                  const Mesh& mesh, std::vector<LostAxis>* lost) {
  const auto is_free = [&](const std::string& axis) { return !user_of(taken, axis); };
  const AxisRule* first = nullptr;
  for (const AxisRule& rule : rules) {
    if (rule.logical != logical) continue;
    if (first == nullptr) first = &rule;
    const std::vector<std::string> axes = axes_of(rule, mesh);
    if (std::all_of(axes.begin(), axes.end(), is_free)) return axes;
  }
  if (first == nullptr) {
    throw Error(fmt::format("no rule names the logical axis \"{}\"", logical), "axis rules",
                "add one, with an empty list of mesh axes where it is never to be split");
  }
  std::vector<std::string> axes;
  for (const std::string& axis : axes_of(*first, mesh)) {
    if (is_free(axis)) {
      axes.push_back(axis);
    } else if (mesh.size(axis) > 1) {
      report(lost, dimension, logical, axis,
             fmt::format("{} already splits dimension {}", axis, *user_of(taken, axis)));
    }
  }
  return axes;
}

int64_t bytes_of(const VariableSpec& variable, const Shape& shape) {
  return static_cast<int64_t>(
      dtype_bytes(variable.dtype, static_cast<size_t>(element_count(shape))));
}

}  // namespace

PartitionSpec logical_to_mesh(const std::vector<std::string>& logical_axes, const AxisRules& rules,
                              const Mesh& mesh, std::vector<LostAxis>* lost) {
  PartitionSpec spec;
  spec.dimensions.resize(logical_axes.size());
  for (size_t d = 0; d < logical_axes.size(); ++d) {
    if (logical_axes[d].empty()) continue;
    spec.dimensions[d] = axes_for(logical_axes[d], d, spec, rules, mesh, lost);
  }
  return spec;
}

PartitionSpec divisible_spec(const PartitionSpec& spec, const Mesh& mesh, const Shape& shape,
                             const Shape& units, std::vector<LostAxis>* lost) {
  GRAFT_CHECK(spec.dimensions.size() <= shape.size());
  PartitionSpec result = spec;
  for (size_t d = 0; d < result.dimensions.size(); ++d) {
    const int64_t unit = units.empty() ? 1 : units[d];
    // A last block that is not whole cannot be shared out.
    const int64_t count = shape[d] % unit == 0 ? shape[d] / unit : 1;
    std::vector<std::string> kept;
    int64_t product = 1;
    for (const std::string& axis : result.dimensions[d]) {
      const int64_t size = mesh.size(axis);
      if (count % (product * size) == 0) {
        kept.push_back(axis);
        product *= size;
        continue;
      }
      const std::string what = unit == 1 ? fmt::format("{}", shape[d])
                                         : fmt::format("{} in blocks of {}", shape[d], unit);
      report(lost, d, "", axis,
             fmt::format("{} does not divide by {}{} {}", what,
                         product > 1 ? fmt::format("{} x ", product) : "", axis, size));
    }
    result.dimensions[d] = std::move(kept);
  }
  return result;
}

AxisUnit parse_axis(const std::string& logical) {
  const size_t colon = logical.find(':');
  if (colon == std::string::npos) return {logical, 1};
  AxisUnit axis{logical.substr(0, colon), 0};
  const char* end = logical.data() + logical.size();
  const auto [stop, error] = std::from_chars(logical.data() + colon + 1, end, axis.unit);
  if (error != std::errc() || stop != end || axis.unit < 1) {
    throw Error(fmt::format("\"{}\" is no logical axis", logical), "axis rules");
  }
  return axis;
}

std::string axis_with_unit(const std::string& name, int64_t unit) {
  return unit == 1 ? name : fmt::format("{}:{}", name, unit);
}

NamedSharding variable_sharding(const VariableSpec& variable, const Mesh& mesh,
                                const AxisRules& rules, std::vector<LostAxis>* lost) {
  if (variable.logical_axes.size() != variable.shape.size()) {
    throw Error(fmt::format("{} logical axes for {} dimensions", variable.logical_axes.size(),
                            variable.shape.size()),
                variable.name);
  }
  std::vector<std::string> names;
  Shape units;
  for (const std::string& logical : variable.logical_axes) {
    AxisUnit axis = parse_axis(logical);
    names.push_back(std::move(axis.name));
    units.push_back(axis.unit);
  }
  std::vector<LostAxis> found;
  PartitionSpec spec = logical_to_mesh(names, rules, mesh, &found);
  if (variable.kind != VariableKind::kData) {
    spec = divisible_spec(spec, mesh, variable.shape, units, &found);
  }
  if (lost != nullptr) {
    for (LostAxis& axis : found) {
      axis.variable = variable.name;
      axis.logical = names[axis.dimension];
      lost->push_back(std::move(axis));
    }
  }
  return {mesh, std::move(spec)};
}

ShardingTable resolve_shardings(const std::vector<VariableSpec>& variables, const Mesh& mesh,
                                const AxisRules& rules) {
  ShardingTable table{mesh, {}, {}};
  for (const VariableSpec& variable : variables) {
    NamedSharding sharding = variable_sharding(variable, mesh, rules, &table.lost);
    const int64_t shard = bytes_of(variable, shard_shape(sharding, variable.shape));
    table.rows.push_back(
        {variable, std::move(sharding), bytes_of(variable, variable.shape), shard});
  }
  return table;
}

Shardings ShardingTable::shardings() const {
  Shardings result;
  for (const ShardingRow& row : rows) result.emplace(row.variable.name, row.sharding);
  return result;
}

int64_t ShardingTable::bytes() const {
  int64_t sum = 0;
  for (const ShardingRow& row : rows) sum += row.bytes;
  return sum;
}

int64_t ShardingTable::bytes_per_device() const {
  int64_t sum = 0;
  for (const ShardingRow& row : rows) sum += row.bytes_per_device;
  return sum;
}

int64_t ShardingTable::bytes_per_device(VariableKind kind) const {
  int64_t sum = 0;
  for (const ShardingRow& row : rows) {
    if (row.variable.kind == kind) sum += row.bytes_per_device;
  }
  return sum;
}

namespace {

// "model.layers.7.mlp" -> "model.layers.*.mlp": layers that are alike become one line.
std::string without_layer_number(const std::string& name) {
  constexpr std::string_view kMark = ".layers.";
  const size_t at = name.find(kMark);
  if (at == std::string::npos) return name;
  const size_t begin = at + kMark.size(), end = name.find('.', begin);
  return name.substr(0, begin) + "*" + (end == std::string::npos ? "" : name.substr(end));
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (const int64_t extent : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
  return "[" + text + "]";
}

struct Line {
  std::string name, type, spec;
  int64_t count = 0, bytes_per_device = 0;
};

}  // namespace

std::string format_table(const ShardingTable& table) {
  std::vector<Line> lines;
  size_t widest = 0, widest_type = 0, widest_spec = 0;
  for (const ShardingRow& row : table.rows) {
    Line line{without_layer_number(row.variable.name),
              std::string(dtype_name(row.variable.dtype)) + shape_text(row.variable.shape),
              to_string(without_unit_axes(row.sharding.spec, table.mesh)), 1, row.bytes_per_device};
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& l) {
      return l.name == line.name && l.type == line.type && l.spec == line.spec;
    });
    if (same != lines.end()) {
      ++same->count;
      same->bytes_per_device += line.bytes_per_device;
      continue;
    }
    widest = std::max(widest, line.name.size());
    widest_type = std::max(widest_type, line.type.size());
    widest_spec = std::max(widest_spec, line.spec.size());
    lines.push_back(std::move(line));
  }
  std::string text = fmt::format("mesh: {}\n", to_string(table.mesh));
  for (const Line& line : lines) {
    text += fmt::format("{:<{}}  {:>4} x {:<{}}  {:<{}}  {:>15} bytes per device\n", line.name,
                        widest, line.count, line.type, widest_type, line.spec, widest_spec,
                        line.bytes_per_device);
  }
  std::vector<std::pair<std::string, int64_t>> lost;
  for (const LostAxis& axis : table.lost) {
    std::string what = fmt::format("{} dimension {} ({}) is not split over {}: {}",
                                   without_layer_number(axis.variable), axis.dimension,
                                   axis.logical, axis.mesh_axis, axis.reason);
    const auto same =
        std::find_if(lost.begin(), lost.end(), [&](const auto& l) { return l.first == what; });
    if (same != lost.end()) ++same->second;
    else lost.emplace_back(std::move(what), 1);
  }
  for (const auto& [what, count] : lost) {
    text += fmt::format("{}{}\n", what, count > 1 ? fmt::format(" ({} times)", count) : "");
  }
  return text;
}

}  // namespace graft
