#pragma once
// Scaled rotary frequencies: `default`, `linear`, `llama3` and `yarn`, as transformers defines
// them.

#include <optional>
#include <string>

#include "models/config.h"

namespace graft {

// The parameters of config.json's `rope_parameters` (or `rope_theta` with `rope_scaling`).
struct RopeParameters {
  std::string type = "default";
  double theta = 10000;
  double factor = 1;
  // llama3
  double low_freq_factor = 1, high_freq_factor = 4;
  double original_max_position_embeddings = 0;
  // yarn (Peng et al., 2023)
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor = std::nullopt;
  double mscale = 0, mscale_all_dim = 0;
};

// Frequencies for `dimensions` rotated elements. Raises Error for a type that is not supported.
RopeConfig resolve_rope(const RopeParameters& parameters, int64_t dimensions,
                        const std::string& where);

}  // namespace graft
