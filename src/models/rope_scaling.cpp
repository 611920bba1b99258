#include "models/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace graft {
namespace {

// theta^(-2i/D), computed as the reference does: the exponent and the power in f32.
std::vector<float> base_frequencies(double theta, int64_t dimensions) {
  std::vector<float> inverse;
  for (int64_t i = 0; i < dimensions / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dimensions);
    inverse.push_back(1.0F / std::pow(static_cast<float>(theta), exponent));
  }
  return inverse;
}

void scale_llama3(const RopeParameters& p, std::vector<float>& inverse) {
  const double low_wavelength = p.original_max_position_embeddings / p.low_freq_factor;
  const double high_wavelength = p.original_max_position_embeddings / p.high_freq_factor;
  for (float& inv : inverse) {
    const double wavelength = 2 * std::numbers::pi / inv;
    if (wavelength < high_wavelength) continue;
    if (wavelength > low_wavelength) {
      inv = static_cast<float>(inv / p.factor);
      continue;
    }
    const double smooth = (p.original_max_position_embeddings / wavelength - p.low_freq_factor) /
                          (p.high_freq_factor - p.low_freq_factor);
    inv = static_cast<float>((1 - smooth) * inv / p.factor + smooth * inv);
  }
}

void scale_yarn(const RopeParameters& p, int64_t dimensions, std::vector<float>& inverse) {
  const double d = static_cast<double>(dimensions);
  // The dimension whose frequency turns `rotations` times over the original context.
  const auto dimension_of = [&](double rotations) {
    return d * std::log(p.original_max_position_embeddings / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(p.theta));
  };
  double low = dimension_of(p.beta_fast), high = dimension_of(p.beta_slow);
  if (p.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double inv = inverse[i];
    inverse[i] = static_cast<float>(inv / p.factor * ramp + inv * (1 - ramp));
  }
}

double yarn_attention_factor(const RopeParameters& p) {
  if (p.attention_factor) return *p.attention_factor;
  const auto get_mscale = [&](double scale) {
    return p.factor <= 1 ? 1.0 : 0.1 * scale * std::log(p.factor) + 1.0;
  };
  if (p.mscale != 0 && p.mscale_all_dim != 0) {
    return get_mscale(p.mscale) / get_mscale(p.mscale_all_dim);
  }
  return get_mscale(1);
}

void require_positive(double value, const char* key, const std::string& where) {
  if (!(value > 0) || !std::isfinite(value)) {
    throw Error(fmt::format("{} must be positive, not {}", key, value), where);
  }
}

}  // namespace

RopeConfig resolve_rope(const RopeParameters& p, int64_t dimensions, const std::string& where) {
  constexpr int64_t kLargestHead =
      1 << 16;  // far beyond any model; a table of hostile size is not made
  if (dimensions > kLargestHead) {
    throw Error(fmt::format("a head of {} elements is not believable", dimensions), where);
  }
  if (dimensions <= 0 || dimensions % 2 != 0) {
    throw Error(fmt::format("rotary embedding needs an even head size, not {}", dimensions), where);
  }
  require_positive(p.theta, "rope_theta", where);
  RopeConfig rope;
  rope.inverse_frequencies = base_frequencies(p.theta, dimensions);
  rope.theta = p.theta;
  if (p.type == "default") return rope;
  rope.scaled = true;
  require_positive(p.factor, "factor", where);
  if (p.type == "linear") {
    for (float& inv : rope.inverse_frequencies) inv = static_cast<float>(inv / p.factor);
  } else if (p.type == "llama3") {
    require_positive(p.original_max_position_embeddings, "original_max_position_embeddings", where);
    require_positive(p.low_freq_factor, "low_freq_factor", where);
    if (!(p.high_freq_factor > p.low_freq_factor)) {
      throw Error("high_freq_factor must be greater than low_freq_factor", where);
    }
    scale_llama3(p, rope.inverse_frequencies);
  } else if (p.type == "yarn") {
    require_positive(p.original_max_position_embeddings, "original_max_position_embeddings", where);
    scale_yarn(p, dimensions, rope.inverse_frequencies);
    rope.attention_factor = yarn_attention_factor(p);
  } else {
    throw Error(fmt::format("rope type \"{}\" is not supported", p.type), where,
                "supported are default, linear, llama3 and yarn");
  }
  return rope;
}

}  // namespace graft
