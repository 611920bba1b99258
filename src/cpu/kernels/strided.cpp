#include "cpu/kernels/strided.h"

#include <cstring>

#include "cpu/kernels/element.h"

namespace graft::cpu {

Strides dense_strides(const Shape& shape) {
  GRAFT_CHECK(shape.size() <= kMaxRank, "an array of {} axes", shape.size());
  Strides strides{};
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

void StridedCopy::add(int64_t extent, int64_t from, int64_t to) {
  if (extent == 0) empty_ = true;
  if (extent == 1 || empty_) return;
  if (rank_ > 0) {
    // Two axes that are one in both arrays make fewer, longer rows.
    Axis& outer = axes_[static_cast<size_t>(rank_ - 1)];
    if (outer.from == from * extent && outer.to == to * extent) {
      outer = {outer.extent * extent, from, to};
      return;
    }
  }
  GRAFT_CHECK(rank_ < kMaxRank, "an array of more than {} axes", kMaxRank);
  axes_[static_cast<size_t>(rank_++)] = {extent, from, to};
}

std::pair<int64_t, int64_t> StridedCopy::offsets(int64_t i, int skipped) const {
  int64_t from = 0, to = 0;
  for (int a = rank_ - 2; a >= 0; --a) {
    if (a == skipped) continue;
    const int64_t index = i % axis(a).extent;
    i /= axis(a).extent;
    from += index * axis(a).from;
    to += index * axis(a).to;
  }
  return {from, to};
}

namespace {

template <typename Word>
void copy_row(const Word* from, int64_t from_stride, Word* to, int64_t to_stride, int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(Word));
  } else if (from_stride == 0 && to_stride == 1) {
    std::fill(to, to + n, *from);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

}  // namespace

template <typename Word>
void StridedCopy::run_rows(const Word* from, Word* to, int threads) const {
  const Axis& inner = axis(rank_ - 1);
  if (rank_ == 1) {
    parallel_parts(inner.extent, threads, [&](int64_t begin, int64_t end) {
      copy_row(from + begin * inner.from, inner.from, to + begin * inner.to, inner.to, end - begin);
    });
    return;
  }
  int64_t rows = 1;
  for (int a = 0; a < rank_ - 1; ++a) rows *= axis(a).extent;
  parallel_rows(rows, inner.extent, threads, [&](int64_t row) {
    const auto [source, target] = offsets(row, -1);
    copy_row(from + source, inner.from, to + target, inner.to, inner.extent);
  });
}

// Where neighbours in one array are far apart in the other: square tiles, so that a line of cache
// that is read or written is used whole. `across` is the axis along which the source is dense.
template <typename Word>
void StridedCopy::run_tiles(const Word* from, Word* to, int across, int threads) const {
  constexpr int64_t kTile = 32;
  const Axis &inner = axis(rank_ - 1), &outer = axis(across);
  const int64_t bands = (outer.extent + kTile - 1) / kTile;
  int64_t matrices = 1;
  for (int a = 0; a < rank_ - 1; ++a) matrices *= a == across ? 1 : axis(a).extent;
  parallel_rows(matrices * bands, inner.extent * kTile, threads, [&](int64_t i) {
    const auto [source, target] = offsets(i / bands, across);
    const int64_t first = i % bands * kTile, last = std::min(outer.extent, first + kTile);
    for (int64_t column = 0; column < inner.extent; column += kTile) {
      const int64_t end = std::min(inner.extent, column + kTile);
      for (int64_t row = first; row < last; ++row) {
        const Word* read = from + source + row * outer.from;
        Word* write = to + target + row * outer.to;
        for (int64_t c = column; c < end; ++c) write[c * inner.to] = read[c * inner.from];
      }
    }
  });
}

void StridedCopy::run(const void* from, void* to, DType dtype, int threads) const {
  if (empty_) return;
  with_word(dtype, [&](auto word) {
    using Word = decltype(word);
    const auto* source = static_cast<const Word*>(from);
    auto* target = static_cast<Word*>(to);
    if (rank_ == 0) {
      *target = *source;
      return;
    }
    if (axis(rank_ - 1).from > 1) {
      for (int a = 0; a < rank_ - 1; ++a) {
        if (axis(a).from == 1) return run_tiles(source, target, a, threads);
      }
    }
    run_rows(source, target, threads);
  });
}

}  // namespace graft::cpu
