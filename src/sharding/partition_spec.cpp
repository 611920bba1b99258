#include "sharding/partition_spec.h"

#include <algorithm>

#include "base/error.h"

namespace graft {

const std::vector<std::string>& PartitionSpec::at(size_t dimension) const {
  static const std::vector<std::string> kNone;
  return dimension < dimensions.size() ? dimensions[dimension] : kNone;
}

bool PartitionSpec::replicated() const {
  return std::all_of(dimensions.begin(), dimensions.end(), [](const auto& d) { return d.empty(); });
}

std::string to_string(const PartitionSpec& spec) {
  std::string text;
  for (const auto& axes : spec.dimensions) {
    std::string entry;
    for (const std::string& axis : axes) {
      entry += fmt::format("{}'{}'", entry.empty() ? "" : ", ", axis);
    }
    if (axes.empty()) entry = "None";
    if (axes.size() > 1) entry = "(" + entry + ")";
    text += (text.empty() ? "" : ", ") + entry;
  }
  return "P(" + text + ")";
}

PartitionSpec without_unit_axes(const PartitionSpec& spec, const Mesh& mesh) {
  PartitionSpec result = spec;
  for (auto& axes : result.dimensions) {
    std::erase_if(axes, [&](const std::string& axis) { return mesh.size(axis) == 1; });
  }
  return result;
}

int64_t parts(const PartitionSpec& spec, const Mesh& mesh, size_t dimension) {
  int64_t product = 1;
  for (const std::string& axis : spec.at(dimension)) product *= mesh.size(axis);
  return product;
}

Shape shard_shape(const NamedSharding& sharding, const Shape& shape) {
  Shape result = shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t n = parts(sharding.spec, sharding.mesh, d);
    result[d] = (shape[d] + n - 1) / n;
  }
  return result;
}

ShardSlice shard_slice(const NamedSharding& sharding, const Shape& shape, int64_t device) {
  ShardSlice slice{Shape(shape.size(), 0), shape};
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t n = parts(sharding.spec, sharding.mesh, d);
    GRAFT_CHECK(shape[d] % n == 0, "{} rows in {} parts", shape[d], n);
    int64_t index = 0;
    for (const std::string& axis : sharding.spec.at(d)) {
      index = index * sharding.mesh.size(axis) + sharding.mesh.coordinate(device, axis);
    }
    slice.extent[d] = shape[d] / n;
    slice.begin[d] = index * slice.extent[d];
  }
  return slice;
}

std::vector<int64_t> owners(const NamedSharding& sharding) {
  std::vector<std::string> used;
  for (const auto& axes : sharding.spec.dimensions)
    used.insert(used.end(), axes.begin(), axes.end());
  std::vector<int64_t> result;
  for (int64_t device = 0; device < sharding.mesh.devices(); ++device) {
    const auto first_along = [&](const auto& axis) {
      return std::find(used.begin(), used.end(), axis.first) != used.end() ||
             sharding.mesh.coordinate(device, axis.first) == 0;
    };
    const MeshAxes& axes = sharding.mesh.axes();
    if (std::all_of(axes.begin(), axes.end(), first_along)) result.push_back(device);
  }
  return result;
}

const NamedSharding& sharding_of(const Shardings& known, const std::string& name) {
  const auto found = known.find(name);
  if (found == known.end()) {
    throw Error("the variable has no sharding", name,
                "shardings are to be computed again after the state has changed");
  }
  return found->second;
}

std::vector<std::string> with_scan_axis(std::vector<std::string> axes, size_t rank,
                                        size_t position) {
  const auto layers = std::count(axes.begin(), axes.end(), kLayersAxis);
  if (axes.size() == rank + 1 && layers == 1) return axes;
  if (axes.size() != rank || layers != 0 || position > rank) {
    throw Error(fmt::format("{} logical axes for a stack of arrays of {} dimensions, the scan axis "
                            "at {}",
                            axes.size(), rank, position),
                "scan axis");
  }
  axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(position), kLayersAxis);
  return axes;
}

PartitionSpec with_scan_axis(const PartitionSpec& spec, size_t rank, size_t position) {
  if (spec.dimensions.size() > rank || position > rank) {
    throw Error(fmt::format("{} has more dimensions than the array's {}", to_string(spec), rank),
                "scan axis");
  }
  PartitionSpec result = spec;
  result.dimensions.resize(rank);
  result.dimensions.insert(result.dimensions.begin() + static_cast<std::ptrdiff_t>(position),
                           std::vector<std::string>());
  return result;
}

std::vector<std::string> without_scan_axis(std::vector<std::string> axes, size_t rank,
                                           size_t position, const std::string& variable) {
  if (axes.size() != rank || position >= rank) {
    throw Error(fmt::format("{} logical axes for an array of {} dimensions: no scan axis can be "
                            "taken out at {}",
                            axes.size(), rank, position),
                variable);
  }
  if (axes[position] != kLayersAxis) {
    throw Error(
        fmt::format("dimension {} is \"{}\", not \"{}\"", position, axes[position], kLayersAxis),
        variable);
  }
  axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(position));
  return axes;
}

}  // namespace graft
