// RMS normalisation, forward and backward: rows one after the other, each read twice while in
// cache.

#include "ops/norm.h"

#include <cmath>

#include "cpu/kernels/pack.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernels/vector-inl.h"

#ifndef GRAFT_CPU_KERNELS_NORM_ROWS_
#define GRAFT_CPU_KERNELS_NORM_ROWS_
namespace graft::cpu {

struct NormRows {
  const void *x, *dy;
  const float* factor;  // w + offset [width], or null
  void* y;              // or dx
  float* rstd;          // written forward, read backward
  float* dw;            // += sum over the rows, or null
  size_t rows, width;
  float eps;
  bool round_before_weight;
};

}  // namespace graft::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

template <typename T>
void normalise(const NormRows& a) {
  const FloatTag d;
  const float width = static_cast<float>(a.width);
  for (size_t row = 0; row < a.rows; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.width;
    T* y = static_cast<T*>(a.y) + row * a.width;
    const float squares = sum_over(d, a.width, [&](size_t i, auto part) HWY_ATTR {
      const auto v = load(d, x + i, part);
      return hn::Mul(v, v);
    });
    const float rstd = 1.0F / std::sqrt(squares / width + a.eps);
    const auto scale = hn::Set(d, rstd);
    for_lanes(d, a.width, [&](size_t i, auto part) HWY_ATTR {
      auto v = hn::Mul(load(d, x + i, part), scale);
      if (a.factor != nullptr) {
        if (a.round_before_weight) v = rounded_to<T>(d, v);
        v = hn::Mul(v, load(d, a.factor + i, part));
      }
      store(d, v, y + i, part);
    });
    a.rstd[row] = rstd;
  }
}

// With n = x rstd and g = dy (w + offset): dx = rstd (g - n mean(g n)), dw = sum of dy n.
template <typename T>
void normalise_grad(const NormRows& a) {
  const FloatTag d;
  const float width = static_cast<float>(a.width);
  for (size_t row = 0; row < a.rows; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.width;
    const T* dy = static_cast<const T*>(a.dy) + row * a.width;
    T* dx = static_cast<T*>(a.y) + row * a.width;
    const float rstd = a.rstd[row];
    const auto scale = hn::Set(d, rstd);
    const auto weighted = [&](size_t i, auto part) HWY_ATTR {
      const auto v = load(d, dy + i, part);
      return a.factor == nullptr ? v : hn::Mul(v, load(d, a.factor + i, part));
    };
    const float product = sum_over(d, a.width, [&](size_t i, auto part) HWY_ATTR {
      return hn::Mul(weighted(i, part), hn::Mul(load(d, x + i, part), scale));
    });
    const auto mean = hn::Set(d, product / width);
    for_lanes(d, a.width, [&](size_t i, auto part) HWY_ATTR {
      const auto n = hn::Mul(load(d, x + i, part), scale);
      const auto g = weighted(i, part);
      if (a.dw != nullptr) {
        const auto dw = hn::MulAdd(load(d, dy + i, part), n, load(d, a.dw + i, part));
        store(d, dw, a.dw + i, part);
      }
      store(d, hn::Mul(scale, hn::NegMulAdd(n, mean, g)), dx + i, part);
    });
  }
}

void norm_rows(const NormRows& a, bool bf16) {
  bf16 ? normalise<BFloat16>(a) : normalise<float>(a);
}
void norm_grad_rows(const NormRows& a, bool bf16) {
  bf16 ? normalise_grad<BFloat16>(a) : normalise_grad<float>(a);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace graft::cpu {
namespace {

HWY_EXPORT(norm_rows);
HWY_EXPORT(norm_grad_rows);

// How rows are shared out: blocks of about kBlockElements, and at most kBlocks of them backward,
// where each has a partial dw.
struct NormBlocks {
  static constexpr int64_t kBlockElements = 16 * 1024, kGradBlocks = 32;
  int64_t rows, width, block_rows, blocks;

  NormBlocks(const Type& x, bool gradient) : width(x.shape.back()) {
    rows = width == 0 ? 0 : x.elements() / width;
    block_rows = std::max<int64_t>(1, kBlockElements / std::max<int64_t>(width, 1));
    if (gradient) block_rows = std::max(block_rows, ceil_divide(rows, kGradBlocks));
    blocks = ceil_divide(rows, block_rows);
  }
  int64_t count(int64_t block) const { return std::min(block_rows, rows - block * block_rows); }
};

struct NormScratch {
  ScratchLayout layout;
  size_t factor = 0, partial = 0;

  NormScratch(const NormBlocks& blocks, bool weighted, bool weight_grad) {
    if (weighted) factor = layout.add(blocks.width);
    if (weight_grad) partial = layout.add(blocks.blocks * blocks.width);
  }
};

// w + offset in f32; null where there is no weight.
const float* make_factor(const KernelCall& call, size_t operand, const NormScratch& scratch) {
  if (call.attributes().flag("unweighted")) return nullptr;
  const Buffer& w = call.in[operand];
  auto* factor = reinterpret_cast<float*>(call.scratch.data() + scratch.factor);
  const int64_t width = w.elements();
  pack_rows({w.data, w.dtype(), width}, 1, width, factor, width);
  const auto offset = static_cast<float>(call.attributes().f64("offset"));
  for (int64_t i = 0; offset != 0.0F && i < width; ++i) factor[i] += offset;
  return factor;
}

const std::byte* row_address(const Buffer& buffer, int64_t element) {
  return buffer.as<const std::byte>() + dtype_bytes(buffer.dtype(), static_cast<size_t>(element));
}

void run_rms_norm(const KernelCall& call) {
  const Buffer& x = call.in[0];
  const NormBlocks blocks(*x.type, false);
  const NormScratch scratch(blocks, !call.attributes().flag("unweighted"), false);
  const float* factor = make_factor(call, 1, scratch);
  const auto eps = static_cast<float>(call.attributes().f64("eps"));
  const bool round = call.attributes().flag("round_before_weight");
  parallel_for(call.threads, blocks.blocks, [&](int64_t block, int) {
    const int64_t row = block * blocks.block_rows, at = row * blocks.width;
    const NormRows rows{.x = row_address(x, at),
                        .dy = nullptr,
                        .factor = factor,
                        .y = const_cast<std::byte*>(row_address(call.out[0], at)),
                        .rstd = call.out[1].as<float>() + row,
                        .dw = nullptr,
                        .rows = static_cast<size_t>(blocks.count(block)),
                        .width = static_cast<size_t>(blocks.width),
                        .eps = eps,
                        .round_before_weight = round};
    HWY_DYNAMIC_DISPATCH(norm_rows)(rows, x.dtype() == DType::kBF16);
  });
}

size_t rms_norm_scratch(const Node& node, std::span<const Type> in, std::span<const Type>, int) {
  return NormScratch(NormBlocks(in[0], false), !node.attributes.flag("unweighted"), false)
      .layout.bytes();
}

void run_rms_norm_grad(const KernelCall& call) {
  const Buffer &dy = call.in[0], &x = call.in[1];
  const bool weight_grad = call.attributes().flag("weight_grad");
  const bool weighted = !call.attributes().flag("unweighted");
  const NormBlocks blocks(*x.type, true);
  const NormScratch scratch(blocks, weighted, weight_grad);
  const float* factor = make_factor(call, 2, scratch);
  float* rstd = call.in.back().as<float>();
  auto* partial = reinterpret_cast<float*>(call.scratch.data() + scratch.partial);
  parallel_for(call.threads, blocks.blocks, [&](int64_t block, int) {
    const int64_t row = block * blocks.block_rows, at = row * blocks.width;
    float* dw = weight_grad ? partial + block * blocks.width : nullptr;
    if (weight_grad) std::fill_n(dw, blocks.width, 0.0F);
    const NormRows rows{.x = row_address(x, at),
                        .dy = row_address(dy, at),
                        .factor = factor,
                        .y = const_cast<std::byte*>(row_address(call.out[0], at)),
                        .rstd = rstd + row,
                        .dw = dw,
                        .rows = static_cast<size_t>(blocks.count(block)),
                        .width = static_cast<size_t>(blocks.width),
                        .eps = 0,
                        .round_before_weight = false};
    HWY_DYNAMIC_DISPATCH(norm_grad_rows)(rows, x.dtype() == DType::kBF16);
  });
  if (!weight_grad) return;
  float* dw = call.out[1].as<float>();
  std::fill_n(dw, blocks.width, 0.0F);
  for (int64_t block = 0; block < blocks.blocks; ++block) {
    add_values(partial + block * blocks.width, dw, blocks.width);
  }
}

size_t rms_norm_grad_scratch(const Node& node, std::span<const Type> in, std::span<const Type>,
                             int) {
  return NormScratch(NormBlocks(in[1], true), !node.attributes.flag("unweighted"),
                     node.attributes.flag("weight_grad"))
      .layout.bytes();
}

bool is_f32_or_bf16(const Type& type) {
  return type.dtype == DType::kF32 || type.dtype == DType::kBF16;
}

bool supports_norm(const Node&, std::span<const Type> in, std::span<const Type>) {
  return is_f32_or_bf16(in[0]) && (in.size() < 2 || is_f32_or_bf16(in[1]));
}
bool supports_norm_grad(const Node&, std::span<const Type> in, std::span<const Type>) {
  return is_f32_or_bf16(in[1]) && is_f32_or_bf16(in[2]);
}

}  // namespace

// In place: a row is read whole before it is written, its last reading element by element with the
// writing; and w is copied first.
std::span<const KernelEntry> norm_kernels() {
  static const KernelEntry kTable[] = {
      {&kRmsNorm,
       {.run = run_rms_norm, .scratch_bytes = rms_norm_scratch, .in_place = true},
       supports_norm},
      {&kRmsNormGrad,
       {.run = run_rms_norm_grad, .scratch_bytes = rms_norm_grad_scratch, .in_place = true},
       supports_norm_grad},
  };
  return kTable;
}

}  // namespace graft::cpu
#endif  // HWY_ONCE
