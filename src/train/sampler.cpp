#include "train/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace graft {

Sampler::Sampler(const SamplingOptions& options)
    : options_(options), random_(options.seed, fnv1a_32("sampling")) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    throw Error(fmt::format("temperature must be at least 0, not {}", options.temperature));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw Error(fmt::format("top_p must be in (0, 1], not {}", options.top_p));
  }
}

int32_t Sampler::next(std::span<const float> logits) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(*largest)) throw Error(fmt::format("the model gave a logit of {}", *largest));
  if (options_.temperature == 0) return static_cast<int32_t>(largest - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> weights(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(*largest)) /
                          options_.temperature);
    total += weights[i];
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return weights[static_cast<size_t>(a)] > weights[static_cast<size_t>(b)];
  });
  double kept = 0;
  size_t count = 0;
  while (count < order.size() && kept < options_.top_p * total) {
    kept += weights[static_cast<size_t>(order[count++])];
  }
  double point = random_.uniform() * kept;
  for (size_t i = 0; i + 1 < count; ++i) {
    point -= weights[static_cast<size_t>(order[i])];
    if (point < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace graft
