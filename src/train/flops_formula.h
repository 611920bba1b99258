#pragma once
// Floating-point operations of a step by formula, part by part: what training costs by itself,
// before anything is computed again.
//
// With T tokens and a linear layer of `in` and `out`: 2 T in out forward; as much again for the
// gradient of its input, where something before it is trained; as much again for its weight's
// gradient, where the weight is trained. A frozen weight costs no weight gradient: so LoRA costs 4
// a parameter and token where full fine-tuning costs 6, plus 6 for each parameter of the adapter.

#include "train/step.h"

namespace graft {

struct StepFlops {
  double forward = 0;          // linear layers of the base
  double input_gradient = 0;   // of those
  double weight_gradient = 0;  // of those; 0 where the base is frozen
  double adapter = 0;          // all three, of the low-rank factors
  double attention = 0;        // both directions; the causal half
  double head = 0;             // of the trained positions

  double total() const {
    return forward + input_gradient + weight_gradient + adapter + attention + head;
  }
};

StepFlops step_flops(const StepOptions& options, const BatchShape& shape);

}  // namespace graft
