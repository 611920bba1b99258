#pragma once
// The base model's weights, from a Hugging Face folder or a GGUF file, by Hugging Face name.
//
//   const ModelConfig config = read_model_config(path);
//   const BaseWeights weights = BaseWeights::open(path, config);
//   const Tensor w = weights.load("model.norm.weight", DType::kF32);

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/packed.h"
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

  // How a matrix is stored, if packed (base/packed.h): GGUF blocks, bitsandbytes, fp8.
  std::optional<PackedLayout> packed(const std::string& name) const;
  // Its bytes in that layout: a view of the mapped file for GGUF (but for rows that have to be
  // put in order), else a copy brought together from the file's parts.
  Tensor load_packed(const std::string& name) const;

  // Lets go of the pages of the mapped file that a parameter lies in: they no longer count as
  // resident, and are read again if they are asked for.
  void release_pages(const std::string& name) const;

  // dtype: as stored, f32 for packed ones; shape: of the matrix
  const std::vector<VariableSpec>& parameters() const;
  const std::vector<std::string>& notes() const;

 private:
  explicit BaseWeights(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}
  std::shared_ptr<const WeightSource> source_;
};

}  // namespace graft
