#pragma once
// Softmax attention with grouped queries, causal order, windows, segments and soft-capping; no
// buffer of size S x T exists in any form of it (Rabe & Staats 2021; Dao et al. 2022).

#include "ir/graph.h"

namespace graft {

// out[b, i, h] = sum_j softmax_j(cap(scale * q[b, i, h] . k[b, j, h / (H/K)])) v[b, j, h / (H/K)]
// over the keys j that query i sees: with absolute query index p = i + query_offset,
//   j <= p,  j > p - window,  and query_segments[b, i] == key_segments[b, j].
// A query that sees no key gives 0 and lse -inf (the sink, if there is one). With softcap > 0,
// cap(x) = softcap * tanh(x / softcap).
//   operands: q [B, S, H, D], k [B, T, K, D], v [B, T, K, Dv], query_segments s32 [B, S],
//             key_segments s32 [B, T], window s32 [], query_offset s32 [],
//             then sinks f32 [H] if attribute has_sinks (a logit per head that only joins the
//             denominator)
//   attributes: scale f64, softcap f64 (0: none), has_sinks
//   results: out [B, S, H, Dv] of q's type,
//            lse f32 [B, H, S] (log of the denominator, sink included; a gradient through it is
//            refused),
//            max_logit f32 [] (largest capped score that any query sees, -inf if none; a statistic:
//            no gradient flows through it)
// A window that never hides a key is kNoWindow. Padding has a segment of its own (0).
extern const Op kAttention;
inline constexpr int32_t kNoWindow = 1 << 30;

// operands: d_out, q, k, v, out, lse, query_segments, key_segments, window, query_offset (, sinks)
// attributes: those of kAttention; results: dq, dk, dv (, d_sinks f32 [H])
extern const Op kAttentionGrad;

struct AttentionOptions {
  double scale = 1;
  double softcap = 0;
};
struct AttentionMask {
  Value query_segments, key_segments;  // s32 [B, S], [B, T]
  Value window;                        // s32 []
  Value query_offset;                  // s32 []
};
struct AttentionResult {
  Value out, lse, max_logit;
};
AttentionResult attention(Value q, Value k, Value v, const AttentionMask& mask,
                          const AttentionOptions& options, Value sinks = {});

}  // namespace graft
