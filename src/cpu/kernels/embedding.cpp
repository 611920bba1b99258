// Token embedding: rows of a table by index, and cotangents added into rows in index order.

#include "ops/embedding.h"

#include <algorithm>
#include <cstring>

#include "cpu/kernels/pack.h"
#include "cpu/kernels/table.h"
#include "cpu/kernels/unpack.h"
#include "cpu/parallel.h"

namespace graft::cpu {
namespace {

void unpack_row(const PackedMatrix& table, int64_t row, DType dtype, std::byte* to) {
  const int64_t width = table.layout.columns;
  if (dtype == DType::kF32) {
    unpack_rows(table, row, 1, 0, width, reinterpret_cast<float*>(to), width);
    return;
  }
  constexpr int64_t kPart = 256;
  alignas(64) float part[kPart];
  for (int64_t column = 0; column < width; column += kPart) {
    const int64_t columns = std::min(kPart, width - column);
    unpack_rows(table, row, 1, column, columns, part, columns);
    store_rows(part, columns, 1, columns, to + dtype_bytes(dtype, static_cast<size_t>(column)),
               dtype, columns);
  }
}

void run_embedding(const KernelCall& call) {
  constexpr int64_t kGrain = 16 * 1024;  // elements
  const Buffer &table = call.in[0], &ids = call.in[1], &out = call.out[0];
  const auto layout = packed_layout(call.attributes());
  const Shape shape = weight_type(*table.type, call.attributes()).shape;
  const int64_t rows = shape[0], width = shape[1];
  const auto* id = ids.as<const int32_t>();
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1));
  parallel_pieces(call.threads, ids.elements(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = std::clamp<int64_t>(id[i], 0, rows - 1);
      auto* to = out.as<std::byte>() + dtype_bytes(out.dtype(), static_cast<size_t>(i * width));
      if (layout) {
        unpack_row({*layout, table.data}, row, out.dtype(), to);
        continue;
      }
      const Rows from = Rows{table.data, table.dtype(), width}.at(row);
      if (table.dtype() == out.dtype()) {
        std::memcpy(to, from.data, dtype_bytes(out.dtype(), static_cast<size_t>(width)));
      } else if (out.dtype() == DType::kF32) {
        pack_rows(from, 1, width, reinterpret_cast<float*>(to), width);
      } else {
        store_rows(static_cast<const float*>(from.data), width, 1, width, to, out.dtype(), width);
      }
    }
  });
}

// Columns are shared out: each thread walks all indices, in order.
void run_embedding_grad(const KernelCall& call) {
  constexpr int64_t kColumns = 64;
  const Buffer &dy = call.in[0], &ids = call.in[1];
  float* table = call.out[0].as<float>();
  const int64_t rows = call.out[0].shape()[0], width = call.out[0].shape()[1];
  const auto* id = ids.as<const int32_t>();
  parallel_pieces(call.threads, rows, 256, [&](int64_t begin, int64_t end) {
    std::fill(table + begin * width, table + end * width, 0.0F);
  });
  parallel_pieces(call.threads, width, kColumns, [&](int64_t begin, int64_t end) {
    const Rows from{dy.data, dy.dtype(), width};
    for (int64_t i = 0; i < ids.elements(); ++i) {
      if (id[i] < 0 || id[i] >= rows) continue;
      add_bias(from.at(i, begin), table + id[i] * width + begin, width, 1, end - begin);
    }
  });
}

bool is_f32_or_bf16(const Type& type) {
  return type.dtype == DType::kF32 || type.dtype == DType::kBF16;
}
bool supports(const Node& node, std::span<const Type> in, std::span<const Type> out) {
  const Type table = weight_type(in[0], node.attributes);
  return is_f32_or_bf16(table) && is_f32_or_bf16(out[0]) &&
         (table.shape[0] > 0 || in[1].elements() == 0);
}
bool supports_grad(const Node&, std::span<const Type> in, std::span<const Type>) {
  return is_f32_or_bf16(in[0]);
}

}  // namespace

std::span<const KernelEntry> embedding_kernels() {
  static const KernelEntry kTable[] = {
      {&kEmbedding, {.run = run_embedding}, supports},
      {&kEmbeddingGrad, {.run = run_embedding_grad}, supports_grad},
  };
  return kTable;
}

}  // namespace graft::cpu
