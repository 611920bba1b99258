#pragma once
// Partition specs: for each dimension of an array, the mesh axes that it is split over.
//
//   const PartitionSpec spec{{{"tensor"}, {"fsdp"}}};     // rows over tensor, columns over fsdp
//   to_string(spec);                                      // P('tensor', 'fsdp')
//   shard_shape(spec, mesh, {576, 1536});                 // of one device
//
// A NamedSharding is a spec with its mesh: a value that can stand wherever the array itself does
// (`replace_leaves`), so that shardings are never a property beside raw arrays that somebody may
// forget.

#include <map>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "sharding/mesh.h"

namespace graft {

struct PartitionSpec {
  // One entry a dimension, major axis first; an empty entry, or none at the end: not split.
  std::vector<std::vector<std::string>> dimensions;

  const std::vector<std::string>& at(size_t dimension) const;  // empty beyond the end
  bool replicated() const;
  friend bool operator==(const PartitionSpec&, const PartitionSpec&) = default;
};

std::string to_string(const PartitionSpec& spec);  // P('tensor', ('data', 'fsdp'), None)

// The spec without axes of size one, which say nothing: for printing.
PartitionSpec without_unit_axes(const PartitionSpec& spec, const Mesh& mesh);

// Into how many parts a dimension is split.
int64_t parts(const PartitionSpec& spec, const Mesh& mesh, size_t dimension);

struct NamedSharding {
  Mesh mesh;
  PartitionSpec spec;
  friend bool operator==(const NamedSharding&, const NamedSharding&) = default;
};

// The shape that the largest shard has: each dimension divided, rounded up.
Shape shard_shape(const NamedSharding& sharding, const Shape& shape);

// Which part of an array a device holds: begin and extent of each dimension. Raises
// std::logic_error where a dimension is not divided evenly (parameters always are, see resolve.h).
struct ShardSlice {
  Shape begin, extent;
  friend bool operator==(const ShardSlice&, const ShardSlice&) = default;
};
ShardSlice shard_slice(const NamedSharding& sharding, const Shape& shape, int64_t device);

// The devices that are the first to hold their slice: each slice is written once.
std::vector<int64_t> owners(const NamedSharding& sharding);

using Shardings = std::map<std::string, NamedSharding>;  // by variable

// For replace_leaves: raises Error naming a variable that has none.
const NamedSharding& sharding_of(const Shardings& known, const std::string& name);

// Each leaf of a state replaced by its sharding: the result has the state's own keys, and shardings
// for values. Raises Error naming a leaf that has none.
template <typename Leaf>
Shardings replace_leaves(const std::map<std::string, Leaf>& state, const Shardings& known) {
  Shardings result;
  for (const auto& leaf : state) result.emplace(leaf.first, sharding_of(known, leaf.first));
  return result;
}

// ---- The scan axis: layers of a stack lie together along one more dimension -------------------

inline constexpr const char* kLayersAxis = "layers";

// Logical axes of the stack of L arrays with these axes: `layers` enters at `position`; where it is
// there already, nothing changes. `rank`: of one layer's array. Raises Error where the axes are
// neither those of one layer nor of a stack.
std::vector<std::string> with_scan_axis(std::vector<std::string> axes, size_t rank,
                                        size_t position);
// The same for a spec; the new dimension is not split.
PartitionSpec with_scan_axis(const PartitionSpec& spec, size_t rank, size_t position);
// Logical axes of one layer of a stack of arrays of `rank` dimensions (`rank` counts the scan
// axis). Raises Error where the axes do not count `rank`, or the one at `position` is not `layers`:
// a stack in a stack (dense layers, then mixtures of experts) takes one step a level.
std::vector<std::string> without_scan_axis(std::vector<std::string> axes, size_t rank,
                                           size_t position, const std::string& variable);

}  // namespace graft
