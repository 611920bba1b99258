#pragma once
// Scaled rotary frequencies: `default`, `linear`, `llama3` and `yarn`, as transformers defines
// them.

#include <optional>
#include <string>
#include <vector>

#include "models/config.h"

namespace graft {

// Frequencies for `dimensions` rotated elements. Raises Error for a type that is not supported.
RopeConfig resolve_rope(const RopeParameters& parameters, int64_t dimensions,
                        const std::string& where);

// theta^(-2i/D): the frequencies without any scaling, [dimensions / 2].
std::vector<float> unscaled_frequencies(double theta, int64_t dimensions);

// By how much YaRN multiplies cos and sin where nothing else is said.
double yarn_magnitude(double factor);

// The llama3 parameters that give these frequencies, if there are such. They are determined up to a
// common factor of low_freq_factor, high_freq_factor and the original length: low_freq_factor is 1.
std::optional<RopeParameters> find_llama3_parameters(double theta,
                                                     const std::vector<float>& frequencies);

}  // namespace graft
