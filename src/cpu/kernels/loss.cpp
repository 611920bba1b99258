// Cross entropy with the head. Its gradient with respect to h is a weighted mean of W's rows, so
// the kernel is attention over the vocabulary: each unit keeps a running maximum, denominator and
// sum of W's rows weighted by exp(logit - maximum), rescaled when the maximum rises, and logits are
// gone as soon as their tile is done. The sums of all groups are joined at the end, in order.
//
// The target's own row is left out of the sums and added last, with p - 1 = -(sum over the others)
// / (sum over all): computed so, the gradient of a token that is already predicted well keeps its
// digits.
//
// For the gradient of W the weights of a chunk are kept (V x 256 values) until its denominators are
// known.

#include "ops/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/gemm.h"
#include "cpu/kernels/loss_plan.h"
#include "cpu/kernels/loss_vector.h"
#include "cpu/kernels/pack.h"
#include "cpu/kernels/table.h"
#include "cpu/kernels/unpack.h"
#include "cpu/parallel.h"

namespace graft::cpu {
namespace {

// The logarithm of a row's sum of exponentials, in parts.
struct RowSums {
  double maximum, others, total;  // sums of exp(logit - maximum): of all but the target, of all
  double target_logit;
  bool has_target;

  // 1 + others / exp(target - maximum), where that is no overflow: keeps the digits of a small
  // loss.
  double nll() const {
    if (!has_target) return maximum + std::log(total);
    const double gap = maximum - target_logit;
    return gap < 80 ? std::log1p(others * std::exp(gap)) : gap + std::log(total);
  }
};

// W's type as LossPlan takes it.
Type head_type(const Type& stored, const Attributes& attributes) {
  const auto layout = packed_layout(attributes);
  return layout ? Type{DType::kU8, {layout->rows, layout->columns}} : stored;
}

class Loss {
 public:
  Loss(const KernelCall& call, bool with_grad)
      : call_(call),
        plan_(*call.in[0].type, head_type(*call.in[1].type, call.attributes()), with_grad,
              call.attributes().flag("weight_grad"), call.threads),
        h_{call.in[0].data, plan_.h, plan_.width},
        w_{call.in[1].data, plan_.w, plan_.width},
        packed_(packed_layout(call.attributes())),
        targets_(call.in[2].as<const int32_t>()),
        row_weights_(call.in[3].as<const float>()),
        softcap_(static_cast<float>(call.attributes().f64("softcap"))) {}

  void run() {
    for (int64_t first = 0; first < plan_.chunks; first += plan_.wave_chunks) {
      const int64_t count = std::min(plan_.wave_chunks, plan_.chunks - first);
      wave(first, count);
    }
    const float* nll = call_.out[1].as<float>();
    double loss = 0;
    for (int64_t row = 0; row < plan_.rows; ++row) {
      // An ignored row adds nothing, whatever its weight.
      if (targets_[row] >= 0) {
        loss += static_cast<double>(row_weights_[row]) * static_cast<double>(nll[row]);
      }
    }
    *call_.out[0].as<float>() = static_cast<float>(loss);
    if (plan_.weight_grad && !dw_begun_) {
      std::fill_n(call_.out[3].as<float>(), plan_.vocabulary * plan_.width, 0.0F);
    }
  }

 private:
  float* shared(size_t offset, int64_t index = 0) const {
    return reinterpret_cast<float*>(call_.scratch.data() + offset) + index;
  }
  float* own(int thread, size_t offset) const {
    return reinterpret_cast<float*>(call_.scratch.data() + plan_.threads_begin +
                                    plan_.thread_bytes * static_cast<size_t>(thread) + offset);
  }
  // By unit of the wave: its rows' maxima, sums of exponentials, and sums of W's rows.
  float* maximum(int64_t unit) const { return shared(plan_.maximum, unit * plan_.chunk_rows); }
  float* others(int64_t unit) const { return shared(plan_.others, unit * plan_.chunk_rows); }
  float* sums(int64_t unit) const {
    return shared(plan_.sums, unit * plan_.chunk_rows * plan_.width);
  }
  float* target_logit(int64_t in_wave) const {
    return shared(plan_.target_logit, in_wave * plan_.chunk_rows);
  }

  // Rows of a chunk up to the last that has a target, in steps of 16: what follows is padding.
  int64_t active_rows(int64_t chunk) const {
    const int64_t first = chunk * plan_.chunk_rows;
    const int64_t rows = std::min(plan_.chunk_rows, plan_.rows - first);
    int64_t active = rows;
    while (active > 0 && targets_[first + active - 1] < 0) --active;
    return std::min(rows, round_up(active, 16));
  }

  void wave(int64_t first, int64_t count) {
    if (!plan_.native) transpose_rows(first, count);
    parallel_for(call_.threads, count * plan_.groups, [&](int64_t unit, int thread) {
      const int64_t in_wave = unit / plan_.groups;
      accumulate(first + in_wave, in_wave, unit % plan_.groups, unit, thread);
    });
    constexpr int64_t kFinishRows = 16;
    const int64_t pieces = ceil_divide(plan_.chunk_rows, kFinishRows);
    parallel_for(call_.threads, count * pieces, [&](int64_t piece, int thread) {
      const int64_t in_wave = piece / pieces, begin = piece % pieces * kFinishRows;
      finish_rows(first + in_wave, in_wave, begin, begin + kFinishRows, thread);
    });
    if (plan_.weight_grad) add_weight_gradient(first);
  }

  void transpose_rows(int64_t first, int64_t count) const {
    constexpr int64_t kColumns = 128;
    const int64_t slices = ceil_divide(plan_.width, kColumns);
    parallel_for(call_.threads, count * slices, [&](int64_t piece, int) {
      const int64_t in_wave = piece / slices, column = piece % slices * kColumns;
      const int64_t rows = active_rows(first + in_wave);
      float* to = shared(plan_.h_transposed, in_wave * plan_.width * plan_.chunk_rows);
      pack_transposed(h_.at((first + in_wave) * plan_.chunk_rows, column), rows,
                      std::min(kColumns, plan_.width - column), to + column * rows, rows);
    });
  }

  MatrixRef transposed_rows(int64_t chunk, int64_t in_wave, int64_t rows) const {
    if (plan_.native) {
      return {h_.at(chunk * plan_.chunk_rows).data, plan_.h, plan_.width, true};
    }
    return {shared(plan_.h_transposed, in_wave * plan_.width * plan_.chunk_rows), DType::kF32,
            rows};
  }

  // Rows of W as products take them: themselves, or expanded into the thread's tile.
  Rows expanded(int64_t first, int64_t count, int thread) const {
    if (!plan_.w_expanded) return w_.at(first);
    float* tile = own(thread, plan_.w_tile);
    if (packed_) {
      unpack_rows({*packed_, call_.in[1].data}, first, count, 0, plan_.width, tile, plan_.width);
    } else {
      pack_rows(w_.at(first), count, plan_.width, tile, plan_.width);
    }
    return {tile, DType::kF32, plan_.width};
  }

  // One chunk of rows against one group of the vocabulary.
  void accumulate(int64_t chunk, int64_t in_wave, int64_t group, int64_t unit, int thread) const {
    const int64_t rows = active_rows(chunk);
    if (rows == 0) return;
    const LossRows state{.rows = static_cast<size_t>(rows),
                         .targets = targets_ + chunk * plan_.chunk_rows,
                         .maximum = maximum(unit),
                         .others = others(unit),
                         .target_logit = target_logit(in_wave),
                         .rescale = own(thread, plan_.rescale)};
    std::fill_n(state.maximum, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.others, rows, 0.0F);
    const MatrixRef h = transposed_rows(chunk, in_wave, rows);
    const int64_t begin = group * plan_.group_size, end = plan_.group_end(group);
    for (int64_t first = begin; first < end; first += LossPlan::kTile) {
      const int64_t count = std::min(LossPlan::kTile, end - first);
      float* tile =
          plan_.weight_grad ? shared(plan_.weights, first * rows) : own(thread, plan_.tile);
      const Rows rows_of_w = expanded(first, count, thread);
      const MatrixRef w{rows_of_w.data, rows_of_w.dtype, plan_.width};
      gemm(count, rows, plan_.width, w, h, tile, rows);
      loss_tile(state, softcap_, static_cast<int32_t>(first), static_cast<size_t>(count), tile,
                static_cast<size_t>(rows));
      if (plan_.weight_grad) {
        std::copy_n(state.maximum, rows,
                    shared(plan_.tile_maximum, first / LossPlan::kTile * plan_.chunk_rows));
      }
      if (plan_.with_grad) add_rows_of_weight(state, unit, tile, count, w, first == begin, thread);
    }
  }

  void add_rows_of_weight(const LossRows& state, int64_t unit, float* tile, int64_t count,
                          const MatrixRef& w, bool first, int thread) const {
    const auto rows = static_cast<int64_t>(state.rows);
    float* sum = sums(unit);
    for (int64_t r = 0; r < rows && !first; ++r) {
      if (state.rescale[r] != 1.0F) {
        scale_values(state.rescale[r], sum + r * plan_.width, plan_.width);
      }
    }
    MatrixRef weights{tile, DType::kF32, rows, true};
    if (plan_.native) {
      weights.data = narrowed(tile, count, rows, thread);
      weights.dtype = DType::kBF16;
    }
    gemm(rows, plan_.width, count, weights, w, sum, plan_.width, 1.0F, first ? 0.0F : 1.0F);
  }

  const void* narrowed(const float* tile, int64_t count, int64_t rows, int thread) const {
    float* narrow = own(thread, plan_.narrow_tile);
    store_rows(tile, rows, count, rows, narrow, DType::kBF16, rows);
    return narrow;
  }

  RowSums join(int64_t in_wave, int64_t row, int32_t target) const {
    const int64_t unit = in_wave * plan_.groups;
    RowSums sums{.maximum = -std::numeric_limits<double>::infinity(),
                 .others = 0,
                 .total = 0,
                 .target_logit = 0,
                 .has_target = target < plan_.vocabulary};
    for (int64_t g = 0; g < plan_.groups; ++g) {
      sums.maximum = std::max(sums.maximum, static_cast<double>(maximum(unit + g)[row]));
    }
    for (int64_t g = 0; g < plan_.groups; ++g) {
      sums.others += static_cast<double>(others(unit + g)[row]) *
                     std::exp(static_cast<double>(maximum(unit + g)[row]) - sums.maximum);
    }
    sums.total = sums.others;
    if (sums.has_target) {
      sums.target_logit = static_cast<double>(target_logit(in_wave)[row]);
      sums.total += std::exp(sums.target_logit - sums.maximum);
    }
    return sums;
  }

  // d loss / d (product with the target's row of W).
  float target_coefficient(const RowSums& sums, double weight) const {
    const double t = softcap_ == 0.0F ? 0.0 : sums.target_logit / static_cast<double>(softcap_);
    return static_cast<float>(-weight * sums.others / sums.total * (1 - t * t));
  }

  void finish_rows(int64_t chunk, int64_t in_wave, int64_t begin, int64_t end, int thread) const {
    const int64_t first = chunk * plan_.chunk_rows;
    end = std::min({end, plan_.chunk_rows, plan_.rows - first});
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = first + r;
      const bool ignored = targets_[row] < 0;
      RowSums sums{};
      if (!ignored) sums = join(in_wave, r, targets_[row]);
      call_.out[1].as<float>()[row] = ignored ? 0.0F : static_cast<float>(sums.nll());
      if (plan_.with_grad) write_dh(in_wave, r, row, ignored, sums, thread);
      if (plan_.weight_grad) note_factors(r, row, ignored, sums);
    }
  }

  void write_dh(int64_t in_wave, int64_t r, int64_t row, bool ignored, const RowSums& sums,
                int thread) const {
    float* dh = own(thread, plan_.dh);
    std::fill_n(dh, plan_.width, 0.0F);
    if (!ignored) {
      const auto weight = static_cast<double>(row_weights_[row]);
      for (int64_t g = 0; g < plan_.groups; ++g) {
        const int64_t unit = in_wave * plan_.groups + g;
        const double shrink = std::exp(static_cast<double>(maximum(unit)[r]) - sums.maximum);
        const auto factor = static_cast<float>(weight / sums.total * shrink);
        add_scaled(factor, {this->sums(unit) + r * plan_.width, DType::kF32, plan_.width}, dh,
                   plan_.width);
      }
      if (sums.has_target) {
        const Rows w = packed_ ? expanded(targets_[row], 1, thread) : w_.at(targets_[row]);
        add_scaled(target_coefficient(sums, weight), w, dh, plan_.width);
      }
    }
    const size_t offset = dtype_bytes(plan_.h, static_cast<size_t>(row * plan_.width));
    store_rows(dh, plan_.width, 1, plan_.width, call_.out[2].as<std::byte>() + offset, plan_.h,
               plan_.width);
  }

  // For the gradient of W: weight / total, less the maximum, and the target's coefficient.
  void note_factors(int64_t r, int64_t row, bool ignored, const RowSums& sums) const {
    const auto weight = ignored ? 0.0 : static_cast<double>(row_weights_[row]);
    float* factors = shared(plan_.factors);
    factors[r] = ignored ? 0.0F : static_cast<float>(weight / sums.total);
    factors[plan_.chunk_rows + r] =
        ignored || !sums.has_target ? 0.0F : target_coefficient(sums, weight);
  }

  // dW += (the chunk's gradient of the logits)^T h, a tile of the vocabulary a unit.
  void add_weight_gradient(int64_t chunk) {
    const int64_t rows = active_rows(chunk);
    if (rows == 0) return;
    parallel_for(call_.threads, plan_.tiles, [&](int64_t tile, int thread) {
      const int64_t first = tile * LossPlan::kTile;
      const int64_t count = std::min(LossPlan::kTile, plan_.vocabulary - first);
      float* gradient = shared(plan_.weights, first * rows);
      tile_gradient(chunk, rows, tile, count, gradient, own(thread, plan_.rescale));
      MatrixRef weights{gradient, DType::kF32, rows};
      if (plan_.native) {
        weights.data = narrowed(gradient, count, rows, thread);
        weights.dtype = DType::kBF16;
      }
      gemm(count, plan_.width, rows, weights,
           {h_.at(chunk * plan_.chunk_rows).data, plan_.h, plan_.width},
           call_.out[3].as<float>() + first * plan_.width, plan_.width, 1.0F,
           dw_begun_ ? 1.0F : 0.0F);
    });
    dw_begun_ = true;
  }

  void tile_gradient(int64_t chunk, int64_t rows, int64_t tile, int64_t count, float* gradient,
                     float* factor) const {
    const float* factors = shared(plan_.factors);
    const float* tile_maximum = shared(plan_.tile_maximum, tile * plan_.chunk_rows);
    for (int64_t r = 0; r < rows; ++r) {
      float greatest = -std::numeric_limits<float>::infinity();
      for (int64_t g = 0; g < plan_.groups; ++g) greatest = std::max(greatest, maximum(g)[r]);
      factor[r] = factors[r] == 0.0F ? 0.0F : factors[r] * std::exp(tile_maximum[r] - greatest);
    }
    scale_columns(factor, gradient, static_cast<size_t>(rows), static_cast<size_t>(count),
                  static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t v = targets_[chunk * plan_.chunk_rows + r] - tile * LossPlan::kTile;
      if (v >= 0 && v < count) gradient[v * rows + r] = factors[plan_.chunk_rows + r];
    }
  }

  const KernelCall& call_;
  LossPlan plan_;
  Rows h_, w_;
  std::optional<PackedLayout> packed_;
  const int32_t* targets_;
  const float* row_weights_;
  float softcap_;
  bool dw_begun_ = false;
};

void run_cross_entropy(const KernelCall& call) { Loss(call, false).run(); }
void run_cross_entropy_with_grad(const KernelCall& call) { Loss(call, true).run(); }

size_t cross_entropy_scratch(const Node& node, std::span<const Type> in, std::span<const Type>,
                             int threads) {
  return LossPlan(in[0], head_type(in[1], node.attributes), false, false, threads).bytes;
}
size_t cross_entropy_with_grad_scratch(const Node& node, std::span<const Type> in,
                                       std::span<const Type>, int threads) {
  return LossPlan(in[0], head_type(in[1], node.attributes), true,
                  node.attributes.flag("weight_grad"), threads)
      .bytes;
}

bool supports(const Node& node, std::span<const Type> in, std::span<const Type>) {
  const auto wide_enough = [](const Type& type) {
    return type.dtype == DType::kF32 || type.dtype == DType::kBF16;
  };
  return wide_enough(in[0]) && wide_enough(weight_type(in[1], node.attributes));
}

}  // namespace

std::span<const KernelEntry> loss_kernels() {
  static const KernelEntry kTable[] = {
      {&kCrossEntropy,
       {.run = run_cross_entropy, .scratch_bytes = cross_entropy_scratch},
       supports},
      {&kCrossEntropyWithGrad,
       {.run = run_cross_entropy_with_grad, .scratch_bytes = cross_entropy_with_grad_scratch},
       supports},
  };
  return kTable;
}

}  // namespace graft::cpu
