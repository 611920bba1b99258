#pragma once
// The weights of a model with its adapter folded in, one tensor at a time: what exports stream.
//
// W + scale * B A is computed in f32 (products in double) whatever the base is stored in, and
// rounded once, to the type that is asked for.
//
//   MergedWeights weights(BaseWeights::open(path, config), state.adapter, state.tensors);
//   for (const VariableSpec& v : weights.parameters()) use(weights.load(v.name, DType::kBF16));
//   weights.rounding_share();  // 0.03: rounding undid 3% of what training changed

#include <map>
#include <string>
#include <vector>

#include "adapters/adapter_file.h"
#include "models/weights.h"

namespace graft {

class MergedWeights {
 public:
  // `tensors` holds lora_A and lora_B of the plan's sites in f32; plan and tensors must outlive
  // this.
  MergedWeights(BaseWeights base, const AdapterPlan& plan,
                const std::map<std::string, Tensor>& tensors);

  const std::vector<VariableSpec>& parameters() const { return base_.parameters(); }
  const std::vector<std::string>& notes() const { return base_.notes(); }

  Tensor load(const std::string& name, DType dtype);

  // Over all adapted weights loaded so far: the length of what rounding to the type asked for
  // changed, as a share of the length of what the adapter changed. 0 where nothing is adapted.
  double rounding_share() const;

 private:
  void measure_rounding(const Tensor& base, const Tensor& merged, const Tensor& rounded);

  BaseWeights base_;
  const AdapterPlan& plan_;
  const std::map<std::string, Tensor>& tensors_;
  double squared_update_ = 0, squared_error_ = 0;
};

}  // namespace graft
