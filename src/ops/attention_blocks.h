#pragma once
// The blocks that both directions of attention decompose to: scans over blocks of queries and of
// keys, so that no buffer of size S x T exists.
//
// Query-like arrays are cut into [blocks, B, K, G, rows, ...] and key-like ones into
// [blocks, B, K, rows, ...], with K key heads and G = H / K query heads to each: grouped queries
// are then plain batched products. Ragged ends are padded and masked by index.

#include "ops/common.h"

namespace graft {

struct AttentionBlockSizes {
  int64_t query = 128, key = 128;
};

// The decompositions of kAttention and kAttentionGrad with blocks of other sizes than the default.
std::vector<Value> attention_in_blocks(Graph& graph, std::span<const Value> operands,
                                       const Attributes& attributes, AttentionBlockSizes sizes);
std::vector<Value> attention_grad_in_blocks(Graph& graph, std::span<const Value> operands,
                                            const Attributes& attributes,
                                            AttentionBlockSizes sizes);

// The extents of one attention, and how it is cut.
struct AttentionLayout {
  int64_t batch, queries, keys, heads, key_heads, groups, width, value_width;
  int64_t query_rows, query_blocks, key_rows, key_blocks;

  AttentionLayout(const Type& q, const Type& k, const Type& v, AttentionBlockSizes sizes);

  Value cut_queries(Value x) const;         // [B, S, H, E] -> [query_blocks, B, K, G, rows, E]
  Value join_queries(Value x) const;        // back
  Value cut_statistic(Value x) const;       // [B, H, S] -> [query_blocks, B, K, G, rows]
  Value join_statistic(Value x) const;      // back
  Value cut_keys(Value x) const;            // [B, T, K, E] -> [key_blocks, B, K, rows, E]
  Value join_keys(Value x) const;           // back
  Value cut_query_segments(Value x) const;  // [B, S] -> [query_blocks, B, rows]
  Value cut_key_segments(Value x) const;    // [B, T] -> [key_blocks, B, rows]
  Value query_starts(Graph& graph) const;   // s32 [query_blocks]
  Value key_starts(Graph& graph) const;     // s32 [key_blocks]
};

// What decides, inside a scan's body, which keys a block of queries sees.
struct BlockMask {
  Value query_segments, query_start;  // s32 [B, query rows], []
  Value key_segments, key_start;      // s32 [B, key rows], []
  Value window, query_offset;         // s32 []
};
// bool [B, K, G, query rows, key rows]
Value visible(const BlockMask& mask, const AttentionLayout& layout);

// cap(scale * q . k) in f32: q [B, K, G, query rows, D], k [B, K, key rows, D] ->
// [B, K, G, query rows, key rows].
Value capped_scores(Value q, Value k, const Attributes& attributes);

}  // namespace graft
