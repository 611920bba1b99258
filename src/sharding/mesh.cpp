#include "sharding/mesh.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace graft {
namespace {

constexpr std::string_view kKnownAxes[] = {"data", "fsdp", "tensor", "expert", "context", "stage"};
constexpr int64_t kMostDevices = int64_t{1} << 20;

void check_names(const MeshAxes& axes) {
  for (size_t i = 0; i < axes.size(); ++i) {
    const std::string& name = axes[i].first;
    if (std::find(std::begin(kKnownAxes), std::end(kKnownAxes), name) == std::end(kKnownAxes)) {
      throw Error(fmt::format("the mesh has no axis \"{}\"", name), "mesh",
                  "the axes are data, fsdp, tensor, expert, context and stage");
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes[j].first == name) throw Error(fmt::format("axis {} is given twice", name), "mesh");
    }
  }
}

// Product of the sizes given, leaving out -1.
int64_t known_devices(const MeshAxes& axes) {
  int64_t product = 1;
  for (const auto& [name, size] : axes) {
    if (size == -1) continue;
    if (size < 1) {
      throw Error(fmt::format("axis {} has size {}", name, size), "mesh",
                  "sizes are 1 or more, or -1 once for the rest of the devices");
    }
    if (size > kMostDevices / product) throw Error("the mesh has over a million devices", "mesh");
    product *= size;
  }
  return product;
}

}  // namespace

Mesh::Mesh(MeshAxes axes) : axes_(std::move(axes)) {
  check_names(axes_);
  for (const auto& axis : axes_) {
    if (axis.second == -1) throw Error("an axis of size -1 was not resolved", "mesh");
  }
  known_devices(axes_);
}

Mesh Mesh::resolve(MeshAxes axes, int64_t devices) {
  const int64_t known = known_devices(axes);
  const auto open = [](const auto& axis) { return axis.second == -1; };
  const auto rest = std::find_if(axes.begin(), axes.end(), open);
  if (rest == axes.end()) {
    if (devices != 0 && known != devices) {
      throw Error(fmt::format("the mesh has {} devices, and there are {}", known, devices), "mesh",
                  "change an axis, or give one of them the size -1");
    }
    return Mesh(std::move(axes));
  }
  if (std::count_if(axes.begin(), axes.end(), open) > 1) {
    throw Error("two axes have the size -1", "mesh", "only one can take the rest of the devices");
  }
  if (devices == 0) {
    throw Error(
        fmt::format("axis {} has size -1, and the number of devices is not known", rest->first),
        "mesh", "give its size");
  }
  if (devices % known != 0) {
    throw Error(fmt::format("{} devices cannot be divided by the other axes' {}", devices, known),
                "mesh", "change an axis");
  }
  rest->second = devices / known;
  return Mesh(std::move(axes));
}

int64_t Mesh::devices() const {
  int64_t product = 1;
  for (const auto& axis : axes_) product *= axis.second;
  return product;
}

bool Mesh::has(std::string_view axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const auto& a) { return a.first == axis; });
}

int64_t Mesh::size(std::string_view axis) const {
  for (const auto& [name, size] : axes_) {
    if (name == axis) return size;
  }
  return 1;
}

int64_t Mesh::coordinate(int64_t device, std::string_view axis) const {
  GRAFT_CHECK(device >= 0 && device < devices());
  for (auto it = axes_.rbegin(); it != axes_.rend(); ++it) {
    if (it->first == axis) return device % it->second;
    device /= it->second;
  }
  return 0;
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (const auto& [name, size] : mesh.axes()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, size);
  }
  return text.empty() ? "one device" : text;
}

void refuse_unsupported_axes(const Mesh& mesh) {
  for (const std::string_view axis : {"expert", "context", "stage"}) {
    if (mesh.size(axis) == 1) continue;
    throw Error(fmt::format("axis {} has size {}: it is not supported yet", axis, mesh.size(axis)),
                fmt::format("mesh.{}", axis), "use data, fsdp and tensor");
  }
}

}  // namespace graft
