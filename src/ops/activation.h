#pragma once
// Gated activations: act(gate) * up, with SiLU (Shazeer 2020: SwiGLU) or GELU in its tanh form
// (GeGLU).

#include <string_view>

#include "ir/graph.h"

namespace graft {

// operands: gate, up of one shape; attribute activation: "silu" | "gelu_tanh" | "gelu" (erf form);
// computed in f32, rounded once.
extern const Op kGatedActivation;
// operands: dy, gate, up; results: d_gate, d_up.
extern const Op kGatedActivationGrad;

Value gated_activation(Value gate, Value up, std::string_view activation);

}  // namespace graft
