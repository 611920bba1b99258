#pragma once
// From logical axes to shardings: rules applied to a variable, then what its shape allows.
//
// Parameters (and all other state) lose a mesh axis that does not divide their dimension; in a list
// of axes each is kept while the product so far divides. Nothing is lost in silence: every axis
// that a rule wanted and a variable did not get is a LostAxis. Activations keep their specs as the
// rules say, whatever their shapes; the compiler pads.
//
//   ShardingTable table = resolve_shardings(variables, mesh, default_axis_rules());
//   table.shardings.at("model.layers.0.mlp.up_proj.weight").spec;   // P('tensor', 'fsdp')
//   log_line(format_table(table));
//
// A logical axis may say how many elements of its dimension stay together: "embed:36" is split
// between blocks of 36 alone. So a packed weight, whose blocks hold codes and scales side by side
// (base/packed.h), is shared out by whole blocks.
//
// Optimiser moments carry their variable's logical axes, and so its sharding. After an adapter is
// attached, a base quantised or a state restored, the table is made anew from the variables as they
// are then: it holds nothing else.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/variable.h"
#include "sharding/partition_spec.h"
#include "sharding/rules.h"

namespace graft {

// A mesh axis that a rule asked for and a variable could not carry.
struct LostAxis {
  std::string variable;
  size_t dimension = 0;
  std::string logical, mesh_axis;
  std::string reason;  // "3 rows do not divide by tensor 2", "tensor already splits dimension 0"
  friend bool operator==(const LostAxis&, const LostAxis&) = default;
};

// The rules alone, as for activations: for each logical axis the first rule all of whose mesh axes
// are still free (axes that the mesh does not have are left out of a rule first). Where no rule is
// wholly free, the free part of the first one is taken and the rest is told in `lost`, if given.
// Raises Error for a logical axis that no rule names; "" is never split.
PartitionSpec logical_to_mesh(const std::vector<std::string>& logical_axes, const AxisRules& rules,
                              const Mesh& mesh, std::vector<LostAxis>* lost = nullptr);

// Drops the axes that do not divide. `units`: how many elements of each dimension stay together (a
// quantised block); empty: 1 each.
PartitionSpec divisible_spec(const PartitionSpec& spec, const Mesh& mesh, const Shape& shape,
                             const Shape& units = {}, std::vector<LostAxis>* lost = nullptr);

// "embed:36": the name, and how many elements stay together (1 where nothing is said). Raises Error
// for a unit that is no number.
struct AxisUnit {
  std::string name;
  int64_t unit = 1;
};
AxisUnit parse_axis(const std::string& logical);
std::string axis_with_unit(const std::string& name, int64_t unit);

// A variable's spec: data (a batch) as an activation, all else as a parameter. Raises Error where
// the logical axes are not one a dimension.
NamedSharding variable_sharding(const VariableSpec& variable, const Mesh& mesh,
                                const AxisRules& rules, std::vector<LostAxis>* lost = nullptr);

// ---- The table of a run -----------------------------------------------------------------------

struct ShardingRow {
  VariableSpec variable;
  NamedSharding sharding;
  int64_t bytes = 0;             // of the whole array
  int64_t bytes_per_device = 0;  // of the largest shard
};

struct ShardingTable {
  Mesh mesh;
  std::vector<ShardingRow> rows;  // in the variables' order
  std::vector<LostAxis> lost;

  Shardings shardings() const;  // by variable
  int64_t bytes() const;
  int64_t bytes_per_device() const;
  int64_t bytes_per_device(VariableKind kind) const;
};

ShardingTable resolve_shardings(const std::vector<VariableSpec>& variables, const Mesh& mesh,
                                const AxisRules& rules);

// For a person: a line a variable (layers that are alike in one line), then what was lost.
std::string format_table(const ShardingTable& table);

}  // namespace graft
