// Attention forward: each tile of queries (kernels/attention_plan.h) goes over the blocks of keys
// that it sees, keeping for every row the running maximum, denominator and weighted sum of values.

#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kernels/attention_grad.h"
#include "cpu/kernels/attention_plan.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

namespace graft::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct ForwardScratch {
  size_t greatest = 0, threads_begin = 0, thread_bytes = 0, bytes = 0;
  size_t q = 0, scores = 0, out = 0, maximum = 0, denominator = 0, keys = 0, values = 0;

  ForwardScratch(const AttentionShape& shape, int threads) {
    ScratchLayout all, own;
    greatest = all.add(shape.batch * shape.key_heads * shape.query_blocks);
    const int64_t rows = shape.tile_rows();
    q = own.add(rows * shape.width);
    scores = own.add(rows * kKeyRows);
    out = own.add(rows * shape.value_width);
    maximum = own.add(rows);
    denominator = own.add(rows);
    if (shape.dtype != DType::kF32) {
      keys = own.add(kKeyRows * shape.width);
      values = own.add(kKeyRows * shape.value_width);
    }
    threads_begin = all.bytes();
    thread_bytes = own.bytes();
    bytes = threads_begin + thread_bytes * static_cast<size_t>(threads);
  }
};

class Forward {
 public:
  explicit Forward(const KernelCall& call)
      : call_(call),
        shape_(*call.in[0].type, *call.in[1].type, *call.in[2].type),
        mask_(call.in.subspan(3)),
        scratch_(shape_, call.threads),
        scale_(static_cast<float>(call.attributes().f64("scale"))),
        softcap_(static_cast<float>(call.attributes().f64("softcap"))),
        sinks_(call.attributes().flag("has_sinks") ? call.in[7].as<const float>() : nullptr) {}

  void run() const {
    const int64_t heads = shape_.batch * shape_.key_heads, units = heads * shape_.query_blocks;
    auto* greatest = reinterpret_cast<float*>(call_.scratch.data() + scratch_.greatest);
    // Late queries see the most keys: they go first, so that threads end together.
    parallel_for(call_.threads, units, [&](int64_t unit, int thread) {
      const int64_t block = shape_.query_blocks - 1 - unit / heads, head = unit % heads;
      greatest[unit] = tile(head / shape_.key_heads, head % shape_.key_heads, block, thread);
    });
    *call_.out[2].as<float>() = *std::max_element(greatest, greatest + units);
  }

 private:
  float* part(int thread, size_t offset) const {
    return reinterpret_cast<float*>(call_.scratch.data() + scratch_.threads_begin +
                                    scratch_.thread_bytes * static_cast<size_t>(thread) + offset);
  }

  // Returns the tile's largest score.
  float tile(int64_t batch, int64_t key_head, int64_t block, int thread) const {
    const int64_t position = block * shape_.positions, count = shape_.block_positions(block);
    const int64_t rows = shape_.groups * count;
    const TileMask mask(shape_, mask_, batch, position, count);
    float* out = part(thread, scratch_.out);
    SoftmaxRows state{.rows = static_cast<size_t>(rows),
                      .maximum = part(thread, scratch_.maximum),
                      .denominator = part(thread, scratch_.denominator),
                      .out = nullptr,
                      .out_width = static_cast<size_t>(shape_.value_width)};
    // A sink is a key that has been seen already: it has a share of the denominator and no value.
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t head = key_head * shape_.groups + r / count;
      state.maximum[r] = sinks_ == nullptr ? kNothing : sinks_[head];
      state.denominator[r] = sinks_ == nullptr ? 0.0F : 1.0F;
    }

    float greatest = kNothing;
    const KeyRange seen = mask.visible();
    if (seen.begin < seen.end) {
      shape_.pack_tile(call_.in[0].data, shape_.width, batch, key_head, position, count,
                       part(thread, scratch_.q), scale_);
    } else {
      std::fill_n(out, rows * shape_.value_width, 0.0F);
    }
    for (int64_t key = seen.begin; key < seen.end; key += kKeyRows) {
      const int64_t keys = std::min(kKeyRows, seen.end - key);
      greatest = std::max(greatest,
                          attend(batch, key_head, key, mask.block(key, keys), state, out, thread));
      state.out = out;
    }
    state.out = out;
    finish(batch, key_head, position, count, state);
    return greatest;
  }

  float attend(int64_t batch, int64_t key_head, int64_t key, const ScoreMask& mask,
               const SoftmaxRows& state, float* out, int thread) const {
    const auto rows = static_cast<int64_t>(state.rows), keys = static_cast<int64_t>(mask.keys);
    float* scores = part(thread, scratch_.scores);
    const Rows k = shape_.key_rows(call_.in[1].data, shape_.width, batch, key, key_head);
    gemm(rows, keys, shape_.width, {part(thread, scratch_.q), DType::kF32, shape_.width},
         key_matrix(k, keys, shape_.width, part(thread, scratch_.keys), true), scores, kKeyRows);
    const float greatest =
        softmax_block(mask, softcap_, scores, static_cast<size_t>(kKeyRows), state);
    const Rows v = shape_.key_rows(call_.in[2].data, shape_.value_width, batch, key, key_head);
    gemm(rows, shape_.value_width, keys, {scores, DType::kF32, kKeyRows},
         key_matrix(v, keys, shape_.value_width, part(thread, scratch_.values), false), out,
         shape_.value_width, 1.0F, state.out == nullptr ? 0.0F : 1.0F);
    return greatest;
  }

  void finish(int64_t batch, int64_t key_head, int64_t position, int64_t count,
              const SoftmaxRows& state) const {
    for (int64_t group = 0; group < shape_.groups; ++group) {
      const int64_t head = key_head * shape_.groups + group, first = group * count;
      const Rows to =
          shape_.query_rows(call_.out[0].data, shape_.value_width, batch, position, head);
      write_softmax_rows(state, static_cast<size_t>(first), static_cast<size_t>(count),
                         const_cast<void*>(to.data), shape_.dtype, static_cast<size_t>(to.stride));
      float* lse =
          call_.out[1].as<float>() + (batch * shape_.heads + head) * shape_.queries + position;
      for (int64_t i = 0; i < count; ++i) {
        const float denominator = state.denominator[first + i];
        // Rows that saw nothing. A NaN is not equal to 0 and stays.
        lse[i] = denominator == 0.0F ? kNothing : state.maximum[first + i] + std::log(denominator);
      }
    }
  }

  const KernelCall& call_;
  AttentionShape shape_;
  AttentionMaskOperands mask_;
  ForwardScratch scratch_;
  float scale_, softcap_;
  const float* sinks_;
};

void run_attention(const KernelCall& call) { Forward(call).run(); }

size_t attention_scratch(const Node&, std::span<const Type> in, std::span<const Type>,
                         int threads) {
  return ForwardScratch(AttentionShape(in[0], in[1], in[2]), threads).bytes;
}

bool supports_attention(const Node&, std::span<const Type> in, std::span<const Type>) {
  return in[0].dtype == DType::kF32 || in[0].dtype == DType::kBF16;
}

}  // namespace

std::span<const KernelEntry> attention_kernels() {
  static const KernelEntry kTable[] = {
      {&kAttention, {.run = run_attention, .scratch_bytes = attention_scratch}, supports_attention},
      {&kAttentionGrad,
       {.run = run_attention_grad, .scratch_bytes = attention_grad_scratch},
       supports_attention},
  };
  return kTable;
}

}  // namespace graft::cpu
