#pragma once
// The base model's weights, from a Hugging Face folder or a GGUF file, by Hugging Face name.
//
//   const ModelConfig config = read_model_config(path);
//   const BaseWeights weights = BaseWeights::open(path, config);
//   const Tensor w = weights.load("model.norm.weight", DType::kF32);

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "ir/variable.h"
#include "models/config.h"

namespace graft {

class WeightSource;  // one kind of file, in weights.cpp

class BaseWeights {
 public:
  // Checks that every parameter of the configuration is there with its shape; raises Error naming
  // the tensor if not. Tensors that the model has no use for are listed in notes().
  static BaseWeights open(const std::filesystem::path& path, const ModelConfig& config);

  // A parameter as `dtype`: a view of the mapped file where it is stored so, else a converted copy
  // (GGUF blocks are expanded, on all cores).
  Tensor load(const std::string& name, DType dtype) const;

  const std::vector<VariableSpec>& parameters() const;  // dtype: as stored, f32 for GGUF blocks
  const std::vector<std::string>& notes() const;

 private:
  explicit BaseWeights(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}
  std::shared_ptr<const WeightSource> source_;
};

}  // namespace graft
