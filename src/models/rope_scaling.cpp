#include "models/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace graft {

// Computed as the reference does: the exponent and the power in f32.
std::vector<float> unscaled_frequencies(double theta, int64_t dimensions) {
  std::vector<float> inverse;
  for (int64_t i = 0; i < dimensions / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dimensions);
    inverse.push_back(1.0F / std::pow(static_cast<float>(theta), exponent));
  }
  return inverse;
}

double yarn_magnitude(double factor) { return factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0; }

namespace {

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
  return yarn_magnitude(p.factor);
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
  rope.inverse_frequencies = unscaled_frequencies(p.theta, dimensions);
  rope.parameters = p;
  if (p.type == "default") return rope;
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

namespace {

bool nearly_equal(const std::vector<float>& a, const std::vector<float>& b) {
  constexpr double kTolerance = 1e-5;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    if (!(std::abs(x - y) <= kTolerance * std::abs(y))) return false;
  }
  return true;
}

}  // namespace

// Between the two wavelengths the divisor d obeys 1/d = (1 - s)/factor + s with
// s = (original/wavelength - low)/(high - low), which is a line over 1/wavelength.
std::optional<RopeParameters> find_llama3_parameters(double theta,
                                                     const std::vector<float>& frequencies) {
  const auto dimensions = static_cast<int64_t>(2 * frequencies.size());
  const std::vector<float> plain = unscaled_frequencies(theta, dimensions);
  RopeParameters p{.type = "llama3", .theta = theta};
  p.factor = static_cast<double>(plain.back()) / frequencies.back();
  if (!(p.factor > 1) || !std::isfinite(p.factor)) return std::nullopt;
  p.factor = std::round(p.factor * 1e4) / 1e4;
  std::vector<std::pair<double, double>> points;  // 1/wavelength, s
  for (size_t i = 0; i < plain.size(); ++i) {
    const double divisor = static_cast<double>(plain[i]) / frequencies[i];
    const double s = (1 / divisor - 1 / p.factor) / (1 - 1 / p.factor);
    if (s > 1e-4 && s < 1 - 1e-4) points.emplace_back(plain[i] / (2 * std::numbers::pi), s);
  }
  if (points.size() >= 2) {
    const auto [x0, s0] = points.front();
    const auto [x1, s1] = points.back();
    const double slope = (s0 - s1) / (x0 - x1), below_zero = slope * x1 - s1;
    p.high_freq_factor = std::round((1 + 1 / below_zero) * 1e3) / 1e3;
    p.original_max_position_embeddings = std::round(slope * (p.high_freq_factor - 1));
  } else if (points.size() == 1) {
    p.original_max_position_embeddings =
        std::round((points[0].second * (p.high_freq_factor - 1) + 1) / points[0].first);
  } else {
    p.original_max_position_embeddings = 8192;  // of Llama 3, whose type it is
  }
  const bool sensible = p.original_max_position_embeddings > 0 && p.high_freq_factor > 1 &&
                        std::isfinite(p.original_max_position_embeddings) &&
                        std::isfinite(p.high_freq_factor);
  if (!sensible) return std::nullopt;
  const RopeConfig found = resolve_rope(p, dimensions, "rope_freqs.weight");
  if (!nearly_equal(found.inverse_frequencies, frequencies)) return std::nullopt;
  return p;
}

}  // namespace graft
