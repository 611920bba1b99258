#include "models/parameter_leaf.h"

#include <algorithm>
#include <cstring>

#include "models/layout.h"

namespace graft {
namespace {

struct Side {
  int64_t size;
  Shape axes;
};

void add_linear(std::vector<ParameterLeaf>& leaves, const std::string& hugging_face,
                const std::string& maxtext, const Side& in, const Side& out) {
  const auto joined = [](Shape first, const Shape& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  const std::string kernel = maxtext + "/kernel";
  leaves.push_back({hugging_face + ".weight", kernel, true, joined(in.axes, out.axes)});
  leaves.push_back({hugging_face + ".bias", maxtext + "/bias", false, out.axes});
  leaves.push_back({hugging_face + ".lora_A", kernel + "_lora_a", true, joined(in.axes, {kRank})});
  leaves.push_back({hugging_face + ".lora_B", kernel + "_lora_b", true, joined({kRank}, out.axes)});
}

template <typename T>
void transpose_into(const std::byte* from, std::byte* to, int64_t rows, int64_t columns) {
  const T* source = reinterpret_cast<const T*>(from);
  T* target = reinterpret_cast<T*>(to);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) target[c * rows + r] = source[r * columns + c];
  }
}

Tensor transpose(const Tensor& given) {
  const Tensor matrix = given.aligned();
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  Tensor result = Tensor::empty(matrix.dtype(), {columns, rows});
  switch (dtype_bits(matrix.dtype())) {
    case 8: transpose_into<uint8_t>(matrix.bytes(), result.mutable_bytes(), rows, columns); break;
    case 16: transpose_into<uint16_t>(matrix.bytes(), result.mutable_bytes(), rows, columns); break;
    case 32: transpose_into<uint32_t>(matrix.bytes(), result.mutable_bytes(), rows, columns); break;
    case 64: transpose_into<uint64_t>(matrix.bytes(), result.mutable_bytes(), rows, columns); break;
    default: throw Error(fmt::format("{} arrays have no layouts", dtype_name(matrix.dtype())));
  }
  return result;
}

}  // namespace

std::vector<ParameterLeaf> layer_leaves(const ModelConfig& c) {
  const Side embed{c.hidden_size, {c.hidden_size}};
  const Side mlp{c.intermediate_size, {c.intermediate_size}};
  const Side heads{c.query_width(), {c.num_attention_heads, c.head_dim}};
  const Side kv_heads{c.key_value_width(), {c.num_key_value_heads, c.head_dim}};
  std::vector<ParameterLeaf> leaves;
  add_linear(leaves, "self_attn.q_proj", "self_attention/query", embed, heads);
  add_linear(leaves, "self_attn.k_proj", "self_attention/key", embed, kv_heads);
  add_linear(leaves, "self_attn.v_proj", "self_attention/value", embed, kv_heads);
  add_linear(leaves, "self_attn.o_proj", "self_attention/out", heads, embed);
  add_linear(leaves, "mlp.gate_proj", "mlp/wi_0", embed, mlp);
  add_linear(leaves, "mlp.up_proj", "mlp/wi_1", embed, mlp);
  add_linear(leaves, "mlp.down_proj", "mlp/wo", mlp, embed);
  const auto norm = [&](const char* hugging_face, const char* maxtext, int64_t size) {
    leaves.push_back(
        {std::string(hugging_face) + ".weight", std::string(maxtext) + "/scale", false, {size}});
  };
  norm("input_layernorm", "pre_self_attention_layer_norm", c.hidden_size);
  norm("post_attention_layernorm", "post_self_attention_layer_norm", c.hidden_size);
  norm("self_attn.q_norm", "self_attention/query_norm", c.head_dim);
  norm("self_attn.k_norm", "self_attention/key_norm", c.head_dim);
  return leaves;
}

std::vector<ParameterLeaf> other_leaves(const ModelConfig& c) {
  return {
      {kEmbeddingName, "token_embedder/embedding", false, {c.vocab_size, c.hidden_size}},
      {kFinalNormName, "decoder/decoder_norm/scale", false, {c.hidden_size}},
      {kHeadName, "decoder/logits_dense/kernel", true, {c.hidden_size, c.vocab_size}},
  };
}

Shape hugging_face_shape(const ParameterLeaf& leaf, const Shape& axes) {
  if (!leaf.transposed) {
    if (leaf.hugging_face == kEmbeddingName) return axes;
    return {element_count(axes)};
  }
  // Rows of the result are MaxText's trailing axes: the rank's place, or the outputs.
  const bool is_a = leaf.hugging_face.ends_with(".lora_A");
  const bool is_b = leaf.hugging_face.ends_with(".lora_B");
  size_t in_axes = 1;
  if (is_a) in_axes = axes.size() - 1;
  else if (!is_b && leaf.maxtext == "self_attention/out/kernel") in_axes = axes.size() - 1;
  const Shape in(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(in_axes));
  const Shape out(axes.begin() + static_cast<std::ptrdiff_t>(in_axes), axes.end());
  return {element_count(out), element_count(in)};
}

Shape with_rank(Shape axes, int64_t rank) {
  std::replace(axes.begin(), axes.end(), kRank, rank);
  return axes;
}

int64_t layer_count(const ModelConfig& config) {
  return static_cast<int64_t>(config.layers.size());
}

bool is_low_rank(const ParameterLeaf& leaf) {
  return leaf.hugging_face.ends_with(".lora_A") || leaf.hugging_face.ends_with(".lora_B");
}

Shape axes_for(const ParameterLeaf& leaf, const Shape& shape, const std::string& name) {
  int64_t rank = 0;
  if (is_low_rank(leaf) && shape.size() == 2) {
    rank = leaf.hugging_face.ends_with(".lora_A") ? shape[0] : shape[1];
  }
  const Shape axes = with_rank(leaf.axes, rank);
  if ((is_low_rank(leaf) && rank < 1) || hugging_face_shape(leaf, axes) != shape) {
    throw Error(fmt::format("\"{}\" has shape {}, which the model has not", name, to_string(shape)),
                "parameters");
  }
  return axes;
}

Tensor to_maxtext(const ParameterLeaf& leaf, const Tensor& array, const Shape& axes) {
  return (leaf.transposed ? transpose(array) : array).reshaped(axes);
}

Tensor to_hugging_face(const ParameterLeaf& leaf, const Tensor& array, const Shape& axes) {
  const Shape shape = hugging_face_shape(leaf, axes);
  if (!leaf.transposed) return array.reshaped(shape);
  return transpose(array.reshaped({shape[1], shape[0]}));
}

size_t axis_limited(int64_t axis, size_t rank) { return std::min(static_cast<size_t>(axis), rank); }

Tensor stack_arrays(const std::vector<Tensor>& arrays, size_t axis) {
  Shape shape = arrays[0].shape();
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(axis),
               static_cast<int64_t>(arrays.size()));
  Tensor result = Tensor::empty(arrays[0].dtype(), shape);
  size_t outer = 1;
  for (size_t i = 0; i < axis; ++i) outer *= static_cast<size_t>(shape[i]);
  const size_t inner = arrays[0].size_bytes() / outer;
  for (size_t o = 0; o < outer; ++o) {
    for (size_t l = 0; l < arrays.size(); ++l) {
      std::memcpy(result.mutable_bytes() + (o * arrays.size() + l) * inner,
                  arrays[l].bytes() + o * inner, inner);
    }
  }
  return result;
}

Tensor slice_array(const Tensor& stacked, size_t axis, size_t index) {
  Shape shape = stacked.shape();
  const auto layers = static_cast<size_t>(shape[axis]);
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  Tensor result = Tensor::empty(stacked.dtype(), shape);
  size_t outer = 1;
  for (size_t i = 0; i < axis; ++i) outer *= static_cast<size_t>(shape[i]);
  const size_t inner = result.size_bytes() / outer;
  for (size_t o = 0; o < outer; ++o) {
    std::memcpy(result.mutable_bytes() + o * inner, stacked.bytes() + (o * layers + index) * inner,
                inner);
  }
  return result;
}

}  // namespace graft
