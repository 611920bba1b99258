#pragma once
// Attention written down as its definition reads: every score, a softmax over a whole row, and the
// gradient of that, in double. Nothing here is shared with the operation that it tests.

#include <limits>

#include "ops/attention.h"
#include "ops/helpers.h"

namespace graft::testing {

struct AttentionProblem {
  int64_t batch = 1, queries = 4, keys = 4, heads = 2, key_heads = 2, width = 3, value_width = 3;
  double scale = 0.6, softcap = 0;
  int32_t window = kNoWindow, query_offset = 0;
  bool sinks = false;
  // Tokens of a segment: 0 puts all into one; else segments 1, 2, ... of this length.
  int64_t segment = 0;
  int64_t padding = 0;  // this many tokens at the end of keys and queries in segment 0
  DType dtype = DType::kF64;

  Tensor segments(int64_t tokens) const {
    std::vector<int32_t> values;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < tokens; ++i) {
        const int64_t number = segment == 0 ? 1 : 1 + (i + b) / segment;
        values.push_back(i >= tokens - padding ? 0 : static_cast<int32_t>(number));
      }
    }
    return Tensor::of<int32_t>({batch, tokens}, values);
  }

  // q, k, v, query_segments, key_segments, window, query_offset (, sinks)
  std::vector<Tensor> inputs() const {
    std::vector<Tensor> tensors{random_tensor({batch, queries, heads, width}, 1, 2, dtype),
                                random_tensor({batch, keys, key_heads, width}, 2, 2, dtype),
                                random_tensor({batch, keys, key_heads, value_width}, 3, 1, dtype),
                                segments(queries),
                                segments(keys),
                                s32_scalar(window),
                                s32_scalar(query_offset)};
    if (sinks) {
      tensors.push_back(random_tensor({heads}, 4, 1, dtype == DType::kF64 ? dtype : DType::kF32));
    }
    return tensors;
  }

  Attributes attributes() const {
    Attributes a{{"scale", scale}, {"softcap", softcap}};
    if (sinks) a.set("has_sinks", true);
    return a;
  }
};

inline std::vector<Value> attend(const AttentionProblem& p, const std::vector<Value>& in) {
  const AttentionResult r =
      attention(in[0], in[1], in[2], {in[3], in[4], in[5], in[6]},
                {.scale = p.scale, .softcap = p.softcap}, p.sinks ? in[7] : Value());
  return {r.out, r.lse, r.max_logit};
}

struct NaiveAttention {
  std::vector<double> out, lse, dq, dk, dv, d_sinks;
  double max_logit = -std::numeric_limits<double>::infinity();

  NaiveAttention(const AttentionProblem& p, const std::vector<Tensor>& in, const Tensor& d_out)
      : p_(p),
        q_(numbers(in[0])),
        k_(numbers(in[1])),
        v_(numbers(in[2])),
        g_(numbers(d_out)),
        query_segments_(in[3].data<int32_t>()),
        key_segments_(in[4].data<int32_t>()),
        sinks_(p.sinks ? numbers(in[7]) : std::vector<double>()) {
    out.resize(g_.size());
    lse.resize(static_cast<size_t>(p.batch * p.heads * p.queries));
    dq.resize(q_.size());
    dk.resize(k_.size());
    dv.resize(v_.size());
    d_sinks.resize(sinks_.size());
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t h = 0; h < p.heads; ++h) {
        for (int64_t i = 0; i < p.queries; ++i) row(b, h, i);
      }
    }
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  bool sees(int64_t b, int64_t i, int64_t j) const {
    const int64_t position = i + p_.query_offset;
    return j <= position && j > position - p_.window &&
           query_segments_[b * p_.queries + i] == key_segments_[b * p_.keys + j];
  }

  void row(int64_t b, int64_t h, int64_t i) {
    const int64_t group = h / (p_.heads / p_.key_heads);
    const int64_t q0 = ((b * p_.queries + i) * p_.heads + h) * p_.width;
    const int64_t o0 = ((b * p_.queries + i) * p_.heads + h) * p_.value_width;
    const auto k0 = [&](int64_t j) {
      return ((b * p_.keys + j) * p_.key_heads + group) * p_.width;
    };
    const auto v0 = [&](int64_t j) {
      return ((b * p_.keys + j) * p_.key_heads + group) * p_.value_width;
    };
    std::vector<double> score(at(p_.keys)), weight(at(p_.keys));
    double total = p_.sinks ? std::exp(sinks_[at(h)]) : 0;
    for (int64_t j = 0; j < p_.keys; ++j) {
      if (!sees(b, i, j)) continue;
      double s = 0;
      for (int64_t e = 0; e < p_.width; ++e) s += q_[at(q0 + e)] * k_[at(k0(j) + e)];
      s *= p_.scale;
      if (p_.softcap > 0) s = p_.softcap * std::tanh(s / p_.softcap);
      score[at(j)] = s;
      max_logit = std::max(max_logit, s);
      total += std::exp(s);
    }
    lse[at((b * p_.heads + h) * p_.queries + i)] = std::log(total);
    if (total == 0) return;
    double delta = 0;
    for (int64_t j = 0; j < p_.keys; ++j) {
      if (!sees(b, i, j)) continue;
      weight[at(j)] = std::exp(score[at(j)]) / total;
      for (int64_t e = 0; e < p_.value_width; ++e) {
        out[at(o0 + e)] += weight[at(j)] * v_[at(v0(j) + e)];
        delta += g_[at(o0 + e)] * weight[at(j)] * v_[at(v0(j) + e)];
      }
    }
    if (p_.sinks) d_sinks[at(h)] -= std::exp(sinks_[at(h)]) / total * delta;
    for (int64_t j = 0; j < p_.keys; ++j) {
      if (!sees(b, i, j)) continue;
      double dp = 0;
      for (int64_t e = 0; e < p_.value_width; ++e) {
        dp += g_[at(o0 + e)] * v_[at(v0(j) + e)];
        dv[at(v0(j) + e)] += weight[at(j)] * g_[at(o0 + e)];
      }
      double ds = weight[at(j)] * (dp - delta) * p_.scale;
      if (p_.softcap > 0) ds *= 1 - std::pow(score[at(j)] / p_.softcap, 2);
      for (int64_t e = 0; e < p_.width; ++e) {
        dq[at(q0 + e)] += ds * k_[at(k0(j) + e)];
        dk[at(k0(j) + e)] += ds * q_[at(q0 + e)];
      }
    }
  }

  const AttentionProblem& p_;
  std::vector<double> q_, k_, v_, g_;
  const int32_t *query_segments_, *key_segments_;
  std::vector<double> sinks_;
};

}  // namespace graft::testing
