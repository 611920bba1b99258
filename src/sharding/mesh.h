#pragma once
// A mesh: the devices of a run, arranged along named axes.
//
// The axes are those that MaxText's users know: `data` (copies of the model), `fsdp` (rows of the
// batch, with the parameters split), `tensor` (heads and hidden units split), and `expert`,
// `context` and `stage`, which are known by name and refused above size 1. Devices are numbered
// row by row: the last axis varies fastest.
//
//   const Mesh mesh = Mesh::resolve({{"data", 1}, {"fsdp", -1}, {"tensor", 2}}, 8);  // fsdp: 4
//   mesh.size("fsdp");       // 4
//   mesh.coordinate(5, "tensor");  // 1

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace graft {

// Axis sizes as a recipe gives them; -1 stands for the rest of the devices.
using MeshAxes = std::vector<std::pair<std::string, int64_t>>;

class Mesh {
 public:
  Mesh() = default;  // of one device, without axes
  // Raises Error for an unknown or repeated axis and for sizes below 1.
  explicit Mesh(MeshAxes axes);
  // Fills in the one axis of size -1 and checks the product against `devices` (0: as many as the
  // axes say, without -1). Raises Error with the numbers.
  static Mesh resolve(MeshAxes axes, int64_t devices);

  const MeshAxes& axes() const { return axes_; }
  int64_t devices() const;
  bool has(std::string_view axis) const;
  int64_t size(std::string_view axis) const;  // 1 for an axis that the mesh does not have
  // How many parts a batch is split into: along the axes data and fsdp.
  int64_t data_parallel() const { return size("data") * size("fsdp"); }
  // Where device number `device` stands along an axis.
  int64_t coordinate(int64_t device, std::string_view axis) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  MeshAxes axes_;
};

std::string to_string(const Mesh& mesh);  // "data 1 x fsdp 4 x tensor 2"

// Raises Error for an axis above size 1 whose kind of parallelism graft does not have yet.
void refuse_unsupported_axes(const Mesh& mesh);

}  // namespace graft
