#pragma once
// Inside the walls of parameter_layout.cpp and its reader: each kind of array with its two forms,
// and the turning, cutting and stacking that lead from one to the other. Use
// models/parameter_layout.h.

#include <cstdint>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "models/config.h"

namespace graft {

// One kind of array and its two forms. A matrix turns from [rows, columns] to [columns, rows] and
// is then cut into `axes`; anything else is only cut.
struct ParameterLeaf {
  std::string hugging_face;  // "self_attn.q_proj.weight"; whole names outside the layers
  std::string maxtext;       // "self_attention/query/kernel"
  bool transposed = false;
  Shape axes;  // of MaxText's array of one layer; kRank where the rank of an adapter stands
};

inline constexpr int64_t kRank = -1;

std::vector<ParameterLeaf> layer_leaves(const ModelConfig& config);  // names relative to a layer
std::vector<ParameterLeaf> other_leaves(const ModelConfig& config);  // whole names
int64_t layer_count(const ModelConfig& config);

bool is_low_rank(const ParameterLeaf& leaf);
Shape with_rank(Shape axes, int64_t rank);  // `axes` with the rank of an adapter put in

// The shape of the Hugging Face array of a leaf with these axes.
Shape hugging_face_shape(const ParameterLeaf& leaf, const Shape& axes);
// The MaxText axes of a leaf whose Hugging Face array has `shape`; raises Error, naming `name`, if
// it cannot.
Shape axes_for(const ParameterLeaf& leaf, const Shape& shape, const std::string& name);

Tensor to_maxtext(const ParameterLeaf& leaf, const Tensor& array, const Shape& axes);
Tensor to_hugging_face(const ParameterLeaf& leaf, const Tensor& array, const Shape& axes);

// A scan axis as it applies to an array of this rank.
size_t axis_limited(int64_t axis, size_t rank);
Tensor stack_arrays(const std::vector<Tensor>& arrays, size_t axis);  // of one shape, on a new axis
Tensor slice_array(const Tensor& stacked, size_t axis, size_t index);

}  // namespace graft
