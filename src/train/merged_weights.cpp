#include "train/merged_weights.h"

#include <algorithm>
#include <cmath>
#include <thread>

namespace graft {
namespace {

// Adds scale * B A to the rows begin to end of w [out, in].
void add_product(Tensor& w, const LoraSite& site, const Tensor& a, const Tensor& b, int64_t begin,
                 int64_t end) {
  const int64_t in = w.shape()[1];
  std::vector<double> row(static_cast<size_t>(in));
  for (int64_t o = begin; o < end; ++o) {
    std::fill(row.begin(), row.end(), 0.0);
    for (int64_t k = 0; k < site.rank; ++k) {
      const double factor = site.scale * static_cast<double>(b.data<float>()[o * site.rank + k]);
      const float* a_row = a.data<float>() + k * in;
      for (size_t i = 0; i < row.size(); ++i) row[i] += factor * static_cast<double>(a_row[i]);
    }
    float* w_row = w.data<float>() + o * in;
    for (size_t i = 0; i < row.size(); ++i) {
      w_row[i] = static_cast<float>(static_cast<double>(w_row[i]) + row[i]);
    }
  }
}

// Rows in parallel: each is computed by itself, so the bits do not depend on how many there are.
Tensor merge(const Tensor& base, const LoraSite& site, const Tensor& a, const Tensor& b) {
  Tensor merged = base.clone();
  const int64_t rows = merged.shape()[0];
  const int64_t workers = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, rows);
  std::vector<std::jthread> threads;
  for (int64_t w = 0; w < workers; ++w) {
    const int64_t begin = rows * w / workers, end = rows * (w + 1) / workers;
    threads.emplace_back(
        [&merged, &site, &a, &b, begin, end] { add_product(merged, site, a, b, begin, end); });
  }
  threads.clear();
  return merged;
}

double squared_distance(const Tensor& x, const Tensor& y) {
  double sum = 0;
  const float* u = x.data<float>();
  const float* v = y.data<float>();
  for (int64_t i = 0; i < x.elements(); ++i) {
    const double d = static_cast<double>(u[i]) - static_cast<double>(v[i]);
    sum += d * d;
  }
  return sum;
}

}  // namespace

MergedWeights::MergedWeights(BaseWeights base, const AdapterPlan& plan,
                             const std::map<std::string, Tensor>& tensors)
    : base_(std::move(base)), plan_(plan), tensors_(tensors) {}

Tensor MergedWeights::load(const std::string& name, DType dtype) {
  const std::string module = name.ends_with(".weight") ? name.substr(0, name.size() - 7) : "";
  const auto site = plan_.sites.find(module);
  if (site == plan_.sites.end()) return base_.load(name, DType::kF32).as(dtype);
  const Tensor base = base_.load(name, DType::kF32);
  const Tensor merged =
      merge(base, site->second, tensors_.at(module + ".lora_A"), tensors_.at(module + ".lora_B"));
  const Tensor rounded = merged.as(dtype);
  measure_rounding(base, merged, rounded.as(DType::kF32));
  return rounded;
}

void MergedWeights::measure_rounding(const Tensor& base, const Tensor& merged,
                                     const Tensor& rounded) {
  squared_update_ += squared_distance(merged, base);
  squared_error_ += squared_distance(rounded, merged);
}

double MergedWeights::rounding_share() const {
  return squared_update_ > 0 ? std::sqrt(squared_error_ / squared_update_) : 0;
}

}  // namespace graft
