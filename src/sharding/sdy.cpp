#include "sharding/sdy.h"

#include "base/error.h"

namespace graft {
namespace {

// <@mesh, [{"data", "fsdp"}, {}]>
std::string body(const PartitionSpec& spec, size_t rank) {
  GRAFT_CHECK(spec.dimensions.size() <= rank);
  std::string text;
  for (size_t d = 0; d < rank; ++d) {
    std::string axes;
    for (const std::string& axis : spec.at(d)) {
      axes += fmt::format("{}\"{}\"", axes.empty() ? "" : ", ", axis);
    }
    text += fmt::format("{}{{{}}}", d == 0 ? "" : ", ", axes);
  }
  return fmt::format("<@{}, [{}]>", kSdyMeshName, text);
}

}  // namespace

std::string sdy_mesh(const Mesh& mesh) {
  std::string axes;
  for (const auto& [name, size] : mesh.axes()) {
    axes += fmt::format("{}\"{}\"={}", axes.empty() ? "" : ", ", name, size);
  }
  return fmt::format("sdy.mesh @{} = <[{}]>", kSdyMeshName, axes);
}

std::string sdy_sharding(const PartitionSpec& spec, size_t rank) {
  return "#sdy.sharding" + body(spec, rank);
}

std::string sdy_constraint(std::string_view result, std::string_view operand, std::string_view type,
                           const PartitionSpec& spec, size_t rank) {
  return fmt::format("{} = sdy.sharding_constraint {} {} : {}", result, operand, body(spec, rank),
                     type);
}

}  // namespace graft
