// Attention backward (Dao et al. 2022): each tile of queries goes over the blocks of keys it sees,
// computing p again from the log of the denominator. One unit of work is a key head of a sequence,
// whose dk and dv it sums tile after tile, so that their order is fixed. Where such units are too
// few to share out, the tiles of each are cut into chunks with partial sums of their own, added in
// order at the end.

#include "cpu/kernels/attention_grad.h"

#include <algorithm>
#include <cmath>

#include "cpu/kernels/attention_plan.h"
#include "cpu/parallel.h"
#include "ops/attention.h"

namespace graft::cpu {
namespace {

enum GradOperand : uint8_t { kDOut, kQ, kK, kV, kOut, kLse, kMask };  // sinks at kMask + 4
constexpr size_t kSinks = kMask + 4;

// How many parts the tiles of a key head are cut into.
int64_t chunk_count(const AttentionShape& shape) {
  constexpr int64_t kEnoughUnits = 16;
  constexpr int64_t kMostPartialElements = 16 << 20;
  const int64_t units = shape.batch * shape.key_heads;
  if (units >= kEnoughUnits) return 1;
  const int64_t elements = units * shape.keys * (shape.width + shape.value_width);
  const int64_t most = std::max<int64_t>(1, kMostPartialElements / std::max<int64_t>(elements, 1));
  return std::max<int64_t>(1,
                           std::min({ceil_divide(kEnoughUnits, units), shape.query_blocks, most}));
}

struct BackwardScratch {
  int64_t chunks;
  size_t partial = 0, partial_bytes = 0, d_sinks = 0, threads_begin = 0, thread_bytes = 0,
         bytes = 0;
  size_t dk = 0, dv = 0;  // within a partial
  size_t q = 0, d_out = 0, dq = 0, scores = 0, d_weights = 0, lse = 0, delta = 0, keys = 0,
         values = 0;

  BackwardScratch(const AttentionShape& shape, int threads) : chunks(chunk_count(shape)) {
    ScratchLayout all, sums, own;
    const int64_t units = shape.batch * shape.key_heads * chunks;
    dk = sums.add(shape.keys * shape.width);
    dv = sums.add(shape.keys * shape.value_width);
    partial_bytes = sums.bytes();
    // With one chunk a thread writes its sums out before it starts on the next unit.
    const int64_t partials = chunks > 1 ? units : threads;
    partial = all.add(partials * static_cast<int64_t>(partial_bytes), 1);
    d_sinks = all.add(units * shape.groups);

    const int64_t rows = shape.tile_rows();
    q = own.add(rows * shape.width);
    d_out = own.add(rows * shape.value_width);
    dq = own.add(rows * shape.width);
    scores = own.add(rows * kKeyRows);
    d_weights = own.add(rows * kKeyRows);
    lse = own.add(rows);
    delta = own.add(rows);
    if (shape.dtype != DType::kF32) {
      keys = own.add(kKeyRows * shape.width);
      values = own.add(kKeyRows * shape.value_width);
    }
    threads_begin = all.bytes();
    thread_bytes = own.bytes();
    bytes = threads_begin + thread_bytes * static_cast<size_t>(threads);
  }
};

// A tile's queries, gathered.
struct Tile {
  int64_t batch, key_head, position, count, rows;
  float *q, *d_out, *dq, *lse, *delta;
};

class Backward {
 public:
  explicit Backward(const KernelCall& call)
      : call_(call),
        shape_(*call.in[kQ].type, *call.in[kK].type, *call.in[kV].type),
        mask_(call.in.subspan(kMask)),
        scratch_(shape_, call.threads),
        scale_(static_cast<float>(call.attributes().f64("scale"))),
        softcap_(static_cast<float>(call.attributes().f64("softcap"))),
        sinks_(call.attributes().flag("has_sinks") ? call.in[kSinks].as<const float>() : nullptr) {}

  void run() const {
    const int64_t heads = shape_.batch * shape_.key_heads;
    parallel_for(call_.threads, heads * scratch_.chunks, [&](int64_t unit, int thread) {
      // Later chunks see more keys and go first.
      chunk(unit % heads, scratch_.chunks - 1 - unit / heads, thread);
    });
    if (scratch_.chunks > 1) {
      parallel_for(call_.threads, heads, [&](int64_t head, int) { add_chunks(head); });
    }
    if (sinks_ != nullptr) sum_sinks();
  }

 private:
  float* part(int thread, size_t offset) const {
    return reinterpret_cast<float*>(call_.scratch.data() + scratch_.threads_begin +
                                    scratch_.thread_bytes * static_cast<size_t>(thread) + offset);
  }
  float* sums(int64_t index, size_t offset) const {
    return reinterpret_cast<float*>(call_.scratch.data() + scratch_.partial +
                                    scratch_.partial_bytes * static_cast<size_t>(index) + offset);
  }
  float* sink_sums(int64_t head, int64_t chunk) const {
    return reinterpret_cast<float*>(call_.scratch.data() + scratch_.d_sinks) +
           (head * scratch_.chunks + chunk) * shape_.groups;
  }

  // `head` counts key heads over the whole batch.
  void chunk(int64_t head, int64_t index, int thread) const {
    const int64_t at = scratch_.chunks > 1 ? head * scratch_.chunks + index : thread;
    float *dk = sums(at, scratch_.dk), *dv = sums(at, scratch_.dv), *sink = sink_sums(head, index);
    std::fill_n(dk, shape_.keys * shape_.width, 0.0F);
    std::fill_n(dv, shape_.keys * shape_.value_width, 0.0F);
    std::fill_n(sink, shape_.groups, 0.0F);
    const int64_t begin = index * shape_.query_blocks / scratch_.chunks;
    const int64_t end = (index + 1) * shape_.query_blocks / scratch_.chunks;
    for (int64_t block = begin; block < end; ++block) {
      differentiate_tile(head / shape_.key_heads, head % shape_.key_heads, block, dk, dv, sink,
                         thread);
    }
    if (scratch_.chunks == 1) write_keys(head, dk, dv);
  }

  void differentiate_tile(int64_t batch, int64_t key_head, int64_t block, float* dk, float* dv,
                          float* sink, int thread) const {
    const int64_t count = shape_.block_positions(block), rows = shape_.groups * count;
    const Tile tile{.batch = batch,
                    .key_head = key_head,
                    .position = block * shape_.positions,
                    .count = count,
                    .rows = rows,
                    .q = part(thread, scratch_.q),
                    .d_out = part(thread, scratch_.d_out),
                    .dq = part(thread, scratch_.dq),
                    .lse = part(thread, scratch_.lse),
                    .delta = part(thread, scratch_.delta)};
    gather(tile);
    if (sinks_ != nullptr) add_sinks(tile, sink);
    const TileMask mask(shape_, mask_, batch, tile.position, count);
    const KeyRange seen = mask.visible();
    if (seen.begin >= seen.end) std::fill_n(tile.dq, rows * shape_.width, 0.0F);
    for (int64_t key = seen.begin; key < seen.end; key += kKeyRows) {
      const int64_t keys = std::min(kKeyRows, seen.end - key);
      differentiate_block(tile, key, mask.block(key, keys), key == seen.begin,
                          dk + key * shape_.width, dv + key * shape_.value_width, thread);
    }
    scatter_dq(tile);
  }

  void gather(const Tile& tile) const {
    shape_.pack_tile(call_.in[kQ].data, shape_.width, tile.batch, tile.key_head, tile.position,
                     tile.count, tile.q, scale_);
    shape_.pack_tile(call_.in[kDOut].data, shape_.value_width, tile.batch, tile.key_head,
                     tile.position, tile.count, tile.d_out);
    for (int64_t group = 0; group < shape_.groups; ++group) {
      const int64_t head = tile.key_head * shape_.groups + group, row = group * tile.count;
      const float* lse = call_.in[kLse].as<const float>() +
                         (tile.batch * shape_.heads + head) * shape_.queries + tile.position;
      std::copy_n(lse, tile.count, tile.lse + row);
      const Rows out = shape_.query_rows(call_.in[kOut].data, shape_.value_width, tile.batch,
                                         tile.position, head);
      row_products(tile.d_out + row * shape_.value_width, out, tile.count, shape_.value_width,
                   tile.delta + row);
    }
  }

  void differentiate_block(const Tile& tile, int64_t key, const ScoreMask& mask, bool first,
                           float* dk, float* dv, int thread) const {
    const auto keys = static_cast<int64_t>(mask.keys);
    const int64_t width = shape_.width, value_width = shape_.value_width;
    float *scores = part(thread, scratch_.scores), *d_weights = part(thread, scratch_.d_weights);
    const MatrixRef k =
        key_matrix(shape_.key_rows(call_.in[kK].data, width, tile.batch, key, tile.key_head), keys,
                   width, part(thread, scratch_.keys), false);
    const MatrixRef v =
        key_matrix(shape_.key_rows(call_.in[kV].data, value_width, tile.batch, key, tile.key_head),
                   keys, value_width, part(thread, scratch_.values), false);
    const MatrixRef q{tile.q, DType::kF32, width}, d_out{tile.d_out, DType::kF32, value_width};
    const auto transposed = [](MatrixRef m) {
      m.transposed = !m.transposed;
      return m;
    };

    gemm(tile.rows, keys, width, q, transposed(k), scores, kKeyRows);
    gemm(tile.rows, keys, value_width, d_out, transposed(v), d_weights, kKeyRows);
    softmax_block_grad(mask, softcap_, scores, d_weights, static_cast<size_t>(kKeyRows),
                       static_cast<size_t>(tile.rows), tile.lse, tile.delta);
    const MatrixRef p{scores, DType::kF32, kKeyRows}, ds{d_weights, DType::kF32, kKeyRows};
    gemm(keys, value_width, tile.rows, transposed(p), d_out, dv, value_width, 1.0F, 1.0F);
    gemm(keys, width, tile.rows, transposed(ds), q, dk, width, 1.0F, 1.0F);
    gemm(tile.rows, width, keys, ds, k, tile.dq, width, 1.0F, first ? 0.0F : 1.0F);
  }

  void scatter_dq(const Tile& tile) const {
    for (int64_t group = 0; group < shape_.groups; ++group) {
      const Rows to = shape_.query_rows(call_.out[0].data, shape_.width, tile.batch, tile.position,
                                        tile.key_head * shape_.groups + group);
      store_rows(tile.dq + group * tile.count * shape_.width, shape_.width, tile.count,
                 shape_.width, const_cast<void*>(to.data), shape_.dtype, to.stride, scale_);
    }
  }

  // A sink has the weight exp(sink - lse) in a row's denominator, and no value.
  void add_sinks(const Tile& tile, float* sink) const {
    for (int64_t group = 0; group < shape_.groups; ++group) {
      const float logit = sinks_[tile.key_head * shape_.groups + group];
      double sum = 0;
      for (int64_t r = group * tile.count; r < (group + 1) * tile.count; ++r) {
        sum +=
            static_cast<double>(std::exp(logit - tile.lse[r])) * static_cast<double>(tile.delta[r]);
      }
      sink[group] -= static_cast<float>(sum);
    }
  }

  void write_keys(int64_t head, const float* dk, const float* dv) const {
    const int64_t batch = head / shape_.key_heads, key_head = head % shape_.key_heads;
    const auto write = [&](const float* from, int64_t extent, void* to_data) {
      const Rows to = shape_.key_rows(to_data, extent, batch, 0, key_head);
      store_rows(from, extent, shape_.keys, extent, const_cast<void*>(to.data), shape_.dtype,
                 to.stride);
    };
    write(dk, shape_.width, call_.out[1].data);
    write(dv, shape_.value_width, call_.out[2].data);
  }

  void add_chunks(int64_t head) const {
    const int64_t first = head * scratch_.chunks;
    float *dk = sums(first, scratch_.dk), *dv = sums(first, scratch_.dv);
    for (int64_t c = 1; c < scratch_.chunks; ++c) {
      add_values(sums(first + c, scratch_.dk), dk, shape_.keys * shape_.width);
      add_values(sums(first + c, scratch_.dv), dv, shape_.keys * shape_.value_width);
    }
    write_keys(head, dk, dv);
  }

  void sum_sinks() const {
    float* d_sinks = call_.out[3].as<float>();
    for (int64_t head = 0; head < shape_.heads; ++head) {
      const int64_t key_head = head / shape_.groups, group = head % shape_.groups;
      double sum = 0;
      for (int64_t batch = 0; batch < shape_.batch; ++batch) {
        for (int64_t c = 0; c < scratch_.chunks; ++c) {
          sum += static_cast<double>(sink_sums(batch * shape_.key_heads + key_head, c)[group]);
        }
      }
      d_sinks[head] = static_cast<float>(sum);
    }
  }

  const KernelCall& call_;
  AttentionShape shape_;
  AttentionMaskOperands mask_;
  BackwardScratch scratch_;
  float scale_, softcap_;
  const float* sinks_;
};

}  // namespace

void run_attention_grad(const KernelCall& call) { Backward(call).run(); }

size_t attention_grad_scratch(const Node&, std::span<const Type> in, std::span<const Type>,
                              int threads) {
  return BackwardScratch(AttentionShape(in[kQ], in[kK], in[kV]), threads).bytes;
}

}  // namespace graft::cpu
