// Kernels of reduce_sum and reduce_max.
//
// An output is the combination of items in an order that shapes alone decide: an item is a piece of
// a dense run along reduced axes, or a vector of kept elements. Where there are few outputs, chunks
// of items are reduced on their own and then combined in order. Float sums accumulate in f64.

#include <limits>

#include "cpu/kernels/element.h"
#include "cpu/kernels/strided.h"
#include "cpu/kernels/table.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

constexpr int64_t kSegment = 4096;     // longest piece of a run
constexpr int64_t kColumns = 128;      // kept elements that one task takes
constexpr int64_t kEnoughTasks = 16;   // with as many outputs to share out, sums are not split
constexpr int64_t kChunkWork = 32768;  // elements of a chunk
constexpr int kLanes = 8;              // independent partial results along a run

// How a reduction is divided; a function of its shapes.
struct Division {
  AxisList kept, reduced;  // without the innermost axis
  int64_t run = 1;         // extent of the innermost axis if it is reduced
  int64_t width = 1;       // or if it is kept
  int64_t segments = 1, blocks = 1, items = 0, chunk = 1, chunks = 1;

  Division(const Shape& shape, const std::vector<int64_t>& axes) {
    const Strides strides = dense_strides(shape);
    size_t next = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      const bool is_reduced = next < axes.size() && axes[next] == static_cast<int64_t>(i);
      next += is_reduced ? 1 : 0;
      if (i + 1 == shape.size()) {
        (is_reduced ? run : width) = shape[i];
      } else {
        (is_reduced ? reduced : kept).add(shape[i], strides[i]);
      }
    }
    segments = (run + kSegment - 1) / kSegment;
    blocks = (width + kColumns - 1) / kColumns;
    items = reduced.total * segments;
    const int64_t work = std::min(run, kSegment) * std::min(width, kColumns);
    if (kept.total * blocks < kEnoughTasks && work > 0) {
      chunk = std::max<int64_t>(1, kChunkWork / work);
      chunks = std::max<int64_t>(1, (items + chunk - 1) / chunk);
    }
    if (chunks == 1) chunk = items;
  }
};

template <typename E>
struct Sum {
  static constexpr bool kFloat = std::is_floating_point_v<typename E::Computed>;
  using Partial = std::conditional_t<kFloat, double, uint64_t>;
  static Partial initial() { return 0; }
  static Partial of(typename E::Computed x) { return static_cast<Partial>(x); }
  static Partial combine(Partial a, Partial b) { return a + b; }
};

template <typename E>
struct Max {
  using Partial = typename E::Computed;
  static Partial initial() {
    using Limits = std::numeric_limits<Partial>;
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  static Partial of(Partial x) { return x; }
  // A NaN, once met, stays.
  static Partial combine(Partial a, Partial b) { return b > a || b != b ? b : a; }
};

// Reduces items [begin, end) of one task into partial[0 .. width of the block).
template <typename E, typename R>
void reduce_items(const Division& d, const typename E::Stored* x, int64_t columns, int64_t begin,
                  int64_t end, typename R::Partial* partial) {
  for (int64_t item = begin; item < end; ++item) {
    const auto* row = x + d.reduced.offset(item / d.segments);
    if (d.width > 1 || d.run == 1) {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        partial[j] = R::combine(partial[j], R::of(E::load(row + j)));
      }
      continue;
    }
    const int64_t first = item % d.segments * kSegment, last = std::min(d.run, first + kSegment);
    std::array<typename R::Partial, kLanes> lanes;
    lanes.fill(R::initial());
    int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) {
#pragma omp simd
      for (int lane = 0; lane < kLanes; ++lane) {
        auto& slot = lanes[static_cast<size_t>(lane)];
        slot = R::combine(slot, R::of(E::load(row + i + lane)));
      }
    }
    for (; i < last; ++i) lanes[0] = R::combine(lanes[0], R::of(E::load(row + i)));
    for (const auto& lane : lanes) partial[0] = R::combine(partial[0], lane);
  }
}

template <typename E, typename R>
void reduce(const KernelCall& call) {
  using Partial = typename R::Partial;
  const Division d(call.in[0].shape(), call.attributes().integers("axes"));
  const auto* x = call.in[0].as<typename E::Stored>();
  auto* out = call.out[0].as<typename E::Stored>();
  auto* scratch = reinterpret_cast<Partial*>(call.scratch.data());
  const int64_t outputs = call.out[0].elements();
  const auto store = [&](int64_t i, Partial value) {
    E::store(out + i, static_cast<typename E::Computed>(value));
  };
  const int64_t tasks = d.kept.total * d.blocks * d.chunks;
  const int64_t cost = std::min(d.width, kColumns) * d.run * d.reduced.total / d.chunks;
  parallel_rows(tasks, cost, call.threads, [&](int64_t task) {
    const int64_t piece = task % d.chunks, block = task / d.chunks % d.blocks;
    const int64_t outer = task / d.chunks / d.blocks;
    const int64_t first = block * kColumns, columns = std::min(kColumns, d.width - first);
    std::array<Partial, kColumns> partial;
    std::fill_n(partial.begin(), columns, R::initial());
    const int64_t begin = piece * d.chunk, end = std::min(d.items, begin + d.chunk);
    reduce_items<E, R>(d, x + d.kept.offset(outer) + first, columns, begin, end, partial.data());
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = outer * d.width + first + j;
      if (d.chunks == 1) {
        store(at, partial[static_cast<size_t>(j)]);
      } else {
        scratch[piece * outputs + at] = partial[static_cast<size_t>(j)];
      }
    }
  });
  if (d.chunks == 1) return;
  parallel_rows(outputs, d.chunks, call.threads, [&](int64_t i) {
    Partial value = R::initial();
    for (int64_t c = 0; c < d.chunks; ++c) value = R::combine(value, scratch[c * outputs + i]);
    store(i, value);
  });
}

size_t reduce_scratch(const Node& node, std::span<const Type> in, std::span<const Type> out, int) {
  const Division d(in[0].shape, node.attributes.integers("axes"));
  if (d.chunks == 1) return 0;
  return static_cast<size_t>(d.chunks) * static_cast<size_t>(out[0].elements()) * sizeof(double);
}

template <template <typename> class R>
void run_reduce(const KernelCall& call) {
  with_number(call.in[0].dtype(), [&](auto element) {
    using E = decltype(element);
    reduce<E, R<E>>(call);
  });
}

bool is_number(const Node&, std::span<const Type> in, std::span<const Type>) {
  return has_float_element(in[0].dtype) || has_integer_element(in[0].dtype);
}

}  // namespace

std::span<const KernelEntry> reduce_kernels() {
  static const KernelEntry kTable[] = {
      {&kReduceSum, {.run = run_reduce<Sum>, .scratch_bytes = reduce_scratch}, is_number},
      {&kReduceMax, {.run = run_reduce<Max>, .scratch_bytes = reduce_scratch}, is_number},
  };
  return kTable;
}

}  // namespace graft::cpu
