// The kernel of dot_general: a batch of matrix products over cpu/gemm.h.
//
// Axes of one role that lie in order behind each other are one axis of a matrix; what then is a
// row-major matrix or a transposed one is multiplied where it stands, everything else is packed
// first. Threads share blocks of the output whose bounds depend on shapes alone.

#include <omp.h>

#include "cpu/gemm.h"
#include "cpu/kernels/element.h"
#include "cpu/kernels/strided.h"
#include "cpu/kernels/table.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

constexpr int64_t kEnoughBlocks = 8;
constexpr int64_t kAlignment = 64;

// One operand as a batch of matrices: rows are free axes of the left or contracted ones of the
// right.
struct Side {
  AxisList batch, rows, columns;
  DType dtype = DType::kF32;  // of the stored matrix
  int64_t stride = 0;         // of a matrix in place
  bool transposed = false;
  bool packed = false;  // not a matrix as it stands
  size_t elements = 0;

  Side() = default;
  Side(const Type& type, const std::vector<int64_t>& batch_axes,
       const std::vector<int64_t>& contract, bool contract_is_rows);

  int64_t matrix() const { return rows.total * columns.total; }
  bool converted(DType given) const { return dtype != given; }
  int64_t batch_offset(int64_t i) const { return packed ? i * matrix() : batch.offset(i); }
};

// The stride of a list of axes as one, or -1 where they are not one.
int64_t single_stride(const AxisList& axes) {
  int64_t stride = 0, span = 0;
  for (int a = axes.count - 1; a >= 0; --a) {
    const auto i = static_cast<size_t>(a);
    if (axes.extents[i] == 1) continue;
    if (stride == 0) {
      stride = axes.strides[i];
    } else if (axes.strides[i] != span) {
      return -1;
    }
    span = axes.strides[i] * axes.extents[i];
  }
  return stride;  // 0: a single element
}

Side::Side(const Type& type, const std::vector<int64_t>& batch_axes,
           const std::vector<int64_t>& contract, bool contract_is_rows) {
  const Strides strides = dense_strides(type.shape);
  std::array<bool, kMaxRank> taken{};
  const auto take = [&](AxisList& list, int64_t axis) {
    const auto i = static_cast<size_t>(axis);
    taken[i] = true;
    list.add(type.shape[i], strides[i]);
  };
  for (int64_t axis : batch_axes) take(batch, axis);
  for (int64_t axis : contract) take(contract_is_rows ? rows : columns, axis);
  for (size_t i = 0; i < type.shape.size(); ++i) {
    if (!taken[i]) (contract_is_rows ? columns : rows).add(type.shape[i], strides[i]);
  }
  elements = static_cast<size_t>(type.elements());
  // gemm takes f32 and bf16; other narrow floats are widened first, f64 has loops of its own.
  dtype = type.dtype == DType::kBF16 || type.dtype == DType::kF64 ? type.dtype : DType::kF32;

  const int64_t row = single_stride(rows), column = single_stride(columns);
  if (row >= 0 && (column == 0 || column == 1)) {
    stride = row > 0 ? row : columns.total;
  } else if (column >= 0 && (row == 0 || row == 1)) {
    transposed = true;
    stride = column;
  } else {
    packed = true;
    stride = columns.total;
  }
}

size_t align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Product {
  Side a, b;
  int64_t batches = 1, m = 1, n = 1, k = 1;
  int64_t row_block = 1, column_block = 1;
  bool direct = true;  // gemm writes into the result

  Product(const Attributes& attributes, const Type& left, const Type& right, DType result)
      : a(left, attributes.integers("lhs_batch"), attributes.integers("lhs_contract"), false),
        b(right, attributes.integers("rhs_batch"), attributes.integers("rhs_contract"), true) {
    batches = a.batch.total;
    m = a.rows.total;
    k = a.columns.total;
    n = b.columns.total;
    direct = result == DType::kF32;
    if (batches * m * n * k == 0 || a.dtype == DType::kF64) return;
    row_block = std::min(m, gemm_row_block(m, n, k));
    const int64_t blocks = batches * ((m + row_block - 1) / row_block);
    int64_t parts = blocks < kEnoughBlocks ? (kEnoughBlocks + blocks - 1) / blocks : 1;
    if (!direct) parts = std::max(parts, (n + 511) / 512);  // what is rounded goes through scratch
    const int64_t width = (n + parts - 1) / parts;
    column_block = std::min(n, std::max<int64_t>(64, (width + 15) / 16 * 16));
  }

  static size_t side_scratch(const Side& side, DType given) {
    const size_t bytes = align(dtype_bytes(side.dtype, side.elements));
    return (side.converted(given) ? bytes : 0) + (side.packed ? bytes : 0);
  }
  size_t block_scratch() const {
    return direct ? 0 : align(static_cast<size_t>(row_block * column_block) * sizeof(float));
  }
};

// Brings an operand into the form that gemm takes, in scratch where that is needed.
const std::byte* prepare(const Side& side, const Buffer& operand, std::byte*& scratch,
                         int threads) {
  const auto* data = operand.as<const std::byte>();
  const size_t bytes = align(dtype_bytes(side.dtype, side.elements));
  if (side.converted(operand.dtype())) {
    const size_t from = dtype_bytes(operand.dtype(), 1), to = dtype_bytes(side.dtype, 1);
    std::byte* target = scratch;
    parallel_parts(static_cast<int64_t>(side.elements), threads, [&](int64_t begin, int64_t end) {
      const auto at = static_cast<size_t>(begin);
      convert_elements(data + at * from, operand.dtype(), target + at * to, side.dtype,
                       static_cast<size_t>(end - begin));
    });
    data = target;
    scratch += bytes;
  }
  if (side.packed) {
    StridedCopy copy;
    int64_t span = static_cast<int64_t>(side.elements);
    for (const AxisList* list : {&side.batch, &side.rows, &side.columns}) {
      for (int i = 0; i < list->count; ++i) {
        const auto axis = static_cast<size_t>(i);
        span /= list->extents[axis];
        copy.add(list->extents[axis], list->strides[axis], span);
      }
    }
    copy.run(data, scratch, side.dtype, threads);
    data = scratch;
    scratch += bytes;
  }
  return data;
}

MatrixRef block_of(const Side& side, const std::byte* data, int64_t batch, int64_t row,
                   int64_t column) {
  int64_t offset = side.batch_offset(batch);
  offset += side.transposed ? column * side.stride + row : row * side.stride + column;
  return {data + dtype_bytes(side.dtype, static_cast<size_t>(offset)), side.dtype, side.stride,
          side.transposed};
}

void multiply(const KernelCall& call, const Product& p) {
  std::byte* scratch = call.scratch.data();
  const std::byte* a = prepare(p.a, call.in[0], scratch, call.threads);
  const std::byte* b = prepare(p.b, call.in[1], scratch, call.threads);
  const Buffer& out = call.out[0];
  const int64_t row_blocks = (p.m + p.row_block - 1) / p.row_block;
  const int64_t column_blocks = (p.n + p.column_block - 1) / p.column_block;
  const size_t bytes = dtype_bytes(out.dtype(), 1);
  const int64_t tasks = p.batches * row_blocks * column_blocks;
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t column = task % column_blocks * p.column_block;
    const int64_t row = task / column_blocks % row_blocks * p.row_block;
    const int64_t batch = task / column_blocks / row_blocks;
    const int64_t m = std::min(p.row_block, p.m - row), n = std::min(p.column_block, p.n - column);
    const MatrixRef left = block_of(p.a, a, batch, row, 0),
                    right = block_of(p.b, b, batch, 0, column);
    const int64_t first = (batch * p.m + row) * p.n + column;
    if (p.direct) {
      gemm(m, n, p.k, left, right, out.as<float>() + first, p.n);
      continue;
    }
    auto* block = reinterpret_cast<float*>(scratch + static_cast<size_t>(omp_get_thread_num()) *
                                                         p.block_scratch());
    gemm(m, n, p.k, left, right, block, n);
    for (int64_t i = 0; i < m; ++i) {
      convert_elements(block + i * n, DType::kF32,
                       out.as<std::byte>() + static_cast<size_t>(first + i * p.n) * bytes,
                       out.dtype(), static_cast<size_t>(n));
    }
  }
}

// f64, for tests: plain loops.
void multiply_f64(const KernelCall& call, const Product& p) {
  const auto *a = call.in[0].as<double>(), *b = call.in[1].as<double>();
  const Buffer& out = call.out[0];
  const size_t bytes = dtype_bytes(out.dtype(), 1);
  parallel_rows(p.batches * p.m, p.n * p.k, call.threads, [&](int64_t i) {
    const int64_t batch = i / p.m;
    const double* left = a + p.a.batch.offset(batch) + p.a.rows.offset(i % p.m);
    const double* right = b + p.b.batch.offset(batch);
    for (int64_t j = 0; j < p.n; ++j) {
      const double* column = right + p.b.columns.offset(j);
      double sum = 0;
      for (int64_t l = 0; l < p.k; ++l)
        sum += left[p.a.columns.offset(l)] * column[p.b.rows.offset(l)];
      convert_elements(&sum, DType::kF64,
                       out.as<std::byte>() + static_cast<size_t>(i * p.n + j) * bytes, out.dtype(),
                       1);
    }
  });
}

Product product_of(const Node& node, const Type& a, const Type& b, const Type& out) {
  return Product(node.attributes, a, b, out.dtype);
}

void run_dot_general(const KernelCall& call) {
  const Product p = product_of(call.node, *call.in[0].type, *call.in[1].type, *call.out[0].type);
  if (call.out[0].elements() == 0) return;
  if (p.a.dtype == DType::kF64) return multiply_f64(call, p);
  if (p.k == 0) {
    std::fill_n(call.out[0].as<std::byte>(), call.out[0].type->bytes(), std::byte{0});
    return;
  }
  multiply(call, p);
}

size_t dot_general_scratch(const Node& node, std::span<const Type> in, std::span<const Type> out,
                           int threads) {
  const Product p = product_of(node, in[0], in[1], out[0]);
  if (p.a.dtype == DType::kF64 || out[0].elements() == 0 || p.k == 0) return 0;
  return Product::side_scratch(p.a, in[0].dtype) + Product::side_scratch(p.b, in[1].dtype) +
         static_cast<size_t>(threads) * p.block_scratch();
}

bool is_float_type(const Node&, std::span<const Type> in, std::span<const Type> out) {
  return is_float(in[0].dtype) && is_float(out[0].dtype) && in[0].dtype == in[1].dtype;
}

}  // namespace

std::span<const KernelEntry> dot_general_kernels() {
  static const KernelEntry kTable[] = {
      {&kDotGeneral, {.run = run_dot_general, .scratch_bytes = dot_general_scratch}, is_float_type},
  };
  return kTable;
}

}  // namespace graft::cpu
