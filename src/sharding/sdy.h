#pragma once
// Meshes and shardings in the text of Shardy's dialect, for the StableHLO emitter.
//
//   sdy_mesh(mesh);                  // sdy.mesh @mesh = <["data"=1, "fsdp"=4, "tensor"=2]>
//   sdy_sharding(spec, 2);           // #sdy.sharding<@mesh, [{"tensor"}, {"fsdp"}]>
//   sdy_constraint("%5", "%4", "tensor<8x64xf32>", spec, 2);

#include <string>
#include <string_view>

#include "sharding/partition_spec.h"

namespace graft {

// The name that shardings refer to.
inline constexpr const char* kSdyMeshName = "mesh";

std::string sdy_mesh(const Mesh& mesh);
// Closed dimensions: exactly this sharding. `rank`: of the array.
std::string sdy_sharding(const PartitionSpec& spec, size_t rank);
// %result = sdy.sharding_constraint %operand <@mesh, [...]> : type
std::string sdy_constraint(std::string_view result, std::string_view operand, std::string_view type,
                           const PartitionSpec& spec, size_t rank);

}  // namespace graft
