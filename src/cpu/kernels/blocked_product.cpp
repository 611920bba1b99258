// The output is cut into panels of columns by blocks of rows. oneDNN multiplies row-major f32
// matrices as they lie but repacks a transposed one for every call, which costs a tenth of the
// product: so a transposed W is brought into row-major order panel by panel, and a thread that goes
// on to the next rows of a panel finds it packed. The same packing expands a bf16 W where the
// product itself does not take it.

#include "cpu/kernels/blocked_product.h"

#include <algorithm>

#include "cpu/isa.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/unpack.h"
#include "cpu/parallel.h"

namespace graft::cpu {
namespace {

constexpr int64_t kBlockRows = 256, kNarrowBlockRows = 128;
// Below this many rows packing would not be amortised.
constexpr int64_t kFewRows = 32;
// Panels are whole register tiles of oneDNN's kernels (48 columns in AVX-512, 24 in AVX2)...
constexpr int64_t kPanelStep = 48, kWidestPanel = 192;
// ... and a packed one stays in a level-2 cache.
constexpr int64_t kPanelElements = 160 * 1024;

int64_t panel_width(const ProductShape& shape, bool w_packed) {
  int64_t width = kWidestPanel;
  if (w_packed) {
    const int64_t fitting = kPanelElements / std::max<int64_t>(shape.depth, 1);
    width = std::clamp(fitting / kPanelStep * kPanelStep, kPanelStep, kWidestPanel);
  }
  return std::max<int64_t>(std::min(width, shape.columns), 1);
}

MatrixRef matrix(const Rows& rows, bool transposed = false) {
  return {rows.data, rows.dtype, rows.stride, transposed};
}

// Elements (0, column) on of a [depth, columns] matrix that may be stored transposed.
Rows from_column(const Rows& stored, bool transposed, int64_t column) {
  return transposed ? stored.at(column) : stored.at(0, column);
}

void pack_panel(const Rows& from, bool transposed, int64_t depth, int64_t columns, float* tile) {
  if (transposed) {
    pack_transposed(from, columns, depth, tile, columns);
  } else {
    pack_rows(from, depth, columns, tile, columns);
  }
}

}  // namespace

ProductPlan::ProductPlan(const ProductShape& shape, int threads)
    : shape_(shape), threads_(threads) {
  const bool packed = shape.packed.has_value();
  const bool x_wide = shape.x == DType::kF32, w_wide = packed || shape.w == DType::kF32;
  const bool native = !x_wide && !w_wide && has_native_bf16();
  x_expanded_ = !x_wide && !native;
  w_packed_ = packed || (w_wide ? shape.w_transposed && shape.rows > kFewRows : !native);
  panel_ = panel_width(shape, w_packed_);
  block_rows_ = panel_ < kPanelStep ? kNarrowBlockRows : kBlockRows;
  blocks_ = ceil_divide(shape.rows, block_rows_);
  panels_ = ceil_divide(shape.columns, panel_);

  ScratchLayout layout;
  const int64_t rows = std::min(shape.rows, block_rows_);
  if (w_packed_) w_tile_ = layout.add(shape.depth * panel_);
  if (shape.rank > 0 && shape.q_transposed) q_tile_ = layout.add(shape.rank * panel_);
  if (x_expanded_) x_tile_ = layout.add(rows * shape.depth);
  if (shape.y != DType::kF32) y_tile_ = layout.add(rows * panel_);
  thread_bytes_ = layout.bytes();
}

class ProductRun {
 public:
  ProductRun(const ProductPlan& plan, const ProductOperands& operands, std::byte* scratch)
      : plan_(plan), shape_(plan.shape_), operands_(operands), scratch_(scratch) {}

  void run() const {
    parallel_runs(plan_.threads_, plan_.panels_ * plan_.blocks_,
                  [&](int64_t begin, int64_t end, int thread) {
                    int64_t packed = -1;
                    for (int64_t unit = begin; unit < end; ++unit) {
                      const int64_t panel = unit / plan_.blocks_;
                      if (panel != packed) pack(panel, thread);
                      packed = panel;
                      compute(panel, unit % plan_.blocks_, thread);
                    }
                  });
  }

 private:
  float* tile(int thread, size_t offset) const {
    return reinterpret_cast<float*>(scratch_ + plan_.thread_bytes_ * static_cast<size_t>(thread) +
                                    offset);
  }
  int64_t panel_columns(int64_t panel) const {
    return std::min(plan_.panel_, shape_.columns - panel * plan_.panel_);
  }
  Rows weight(int64_t panel) const {
    const int64_t stride = shape_.w_transposed ? shape_.depth : shape_.columns;
    return from_column({operands_.w, shape_.w, stride}, shape_.w_transposed, panel * plan_.panel_);
  }
  Rows low_rank_weight(int64_t panel) const {
    const int64_t stride = shape_.q_transposed ? shape_.rank : shape_.columns;
    return from_column({operands_.q, DType::kF32, stride}, shape_.q_transposed,
                       panel * plan_.panel_);
  }

  void pack(int64_t panel, int thread) const {
    const int64_t columns = panel_columns(panel);
    if (shape_.packed) {
      expand_panel(panel * plan_.panel_, columns, tile(thread, plan_.w_tile_));
    } else if (plan_.w_packed_) {
      pack_panel(weight(panel), shape_.w_transposed, shape_.depth, columns,
                 tile(thread, plan_.w_tile_));
    }
    if (shape_.rank > 0 && shape_.q_transposed) {
      float* q = tile(thread, plan_.q_tile_);
      pack_transposed(low_rank_weight(panel), columns, shape_.rank, q, columns);
      scale_values(operands_.q_scale, q, shape_.rank * columns);
    }
  }

  void expand_panel(int64_t column, int64_t columns, float* tile) const {
    const PackedMatrix w{*shape_.packed, operands_.w};
    if (shape_.w_transposed) {
      alignas(64) float strip[kStripElements];
      unpack_transposed(w, column, columns, strip, tile, columns);
    } else {
      unpack_rows(w, 0, shape_.depth, column, columns, tile, columns);
    }
  }

  void compute(int64_t panel, int64_t block, int thread) const {
    const int64_t row = block * plan_.block_rows_, column = panel * plan_.panel_;
    const int64_t rows = std::min(plan_.block_rows_, shape_.rows - row),
                  columns = panel_columns(panel);
    std::byte* target = static_cast<std::byte*>(operands_.y) +
                        dtype_bytes(shape_.y, static_cast<size_t>(row * shape_.columns + column));
    const bool direct = shape_.y == DType::kF32;
    float* y = direct ? reinterpret_cast<float*>(target) : tile(thread, plan_.y_tile_);
    const int64_t stride = direct ? shape_.columns : columns;

    Rows x = Rows{operands_.x, shape_.x, shape_.depth}.at(row);
    if (plan_.x_expanded_) {
      float* expanded = tile(thread, plan_.x_tile_);
      pack_rows(x, rows, shape_.depth, expanded, shape_.depth);
      x = {expanded, DType::kF32, shape_.depth};
    }
    const MatrixRef w = plan_.w_packed_
                            ? MatrixRef{tile(thread, plan_.w_tile_), DType::kF32, columns}
                            : matrix(weight(panel), shape_.w_transposed);
    gemm(rows, columns, shape_.depth, matrix(x), w, y, stride);
    if (shape_.rank > 0) add_low_rank(panel, row, rows, columns, y, stride, thread);
    if (operands_.bias != nullptr) {
      add_bias(Rows{operands_.bias, operands_.bias_dtype, shape_.columns}.at(0, column), y, stride,
               rows, columns);
    }
    if (!direct || operands_.y_scale != 1.0F) {
      store_rows(y, stride, rows, columns, target, shape_.y, shape_.columns, operands_.y_scale);
    }
  }

  void add_low_rank(int64_t panel, int64_t row, int64_t rows, int64_t columns, float* y,
                    int64_t stride, int thread) const {
    const MatrixRef low{operands_.low + row * shape_.rank, DType::kF32, shape_.rank};
    if (shape_.q_transposed) {
      const MatrixRef q{tile(thread, plan_.q_tile_), DType::kF32, columns};
      gemm(rows, columns, shape_.rank, low, q, y, stride, 1.0F, 1.0F);
    } else {
      gemm(rows, columns, shape_.rank, low, matrix(low_rank_weight(panel)), y, stride,
           operands_.q_scale, 1.0F);
    }
  }

  const ProductPlan& plan_;
  const ProductShape& shape_;
  const ProductOperands& operands_;
  std::byte* scratch_;
};

void multiply(const ProductPlan& plan, const ProductOperands& operands, std::byte* scratch) {
  ProductRun(plan, operands, scratch).run();
}

}  // namespace graft::cpu
