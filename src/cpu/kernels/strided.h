#pragma once
// Copies between strided arrays: what broadcasts, transposes, slices, padding and concatenation all
// are.
//
//   StridedCopy copy;
//   for (size_t i = 0; i < rank; ++i) copy.add(extent[i], from_stride[i], to_stride[i]);
//   copy.run(from, to, DType::kF32, threads);

#include <array>
#include <cstdint>

#include "cpu/kernel.h"

namespace graft::cpu {

inline constexpr int kMaxRank = 16;
using Strides = std::array<int64_t, kMaxRank>;

// Of a dense row-major array, in elements.
Strides dense_strides(const Shape& shape);

// Some of an array's axes, indexed as one in row-major order.
struct AxisList {
  Strides extents{}, strides{};
  int count = 0;
  int64_t total = 1;

  void add(int64_t extent, int64_t stride) {
    GRAFT_CHECK(count < kMaxRank);
    extents[static_cast<size_t>(count)] = extent;
    strides[static_cast<size_t>(count++)] = stride;
    total *= extent;
  }
  int64_t offset(int64_t i) const {
    int64_t offset = 0;
    for (int a = count - 1; a >= 0; --a) {
      const int64_t extent = extents[static_cast<size_t>(a)];
      offset += i % extent * strides[static_cast<size_t>(a)];
      i /= extent;
    }
    return offset;
  }
};

class StridedCopy {
 public:
  // An axis, slowest first; strides in elements. 0 in `from` repeats.
  void add(int64_t extent, int64_t from, int64_t to);

  // to[index . to_strides] = from[index . from_strides] for every index.
  void run(const void* from, void* to, DType dtype, int threads) const;

 private:
  struct Axis {
    int64_t extent, from, to;
  };

  const Axis& axis(int i) const { return axes_[static_cast<size_t>(i)]; }
  template <typename Word>
  void run_rows(const Word* from, Word* to, int threads) const;
  template <typename Word>
  void run_tiles(const Word* from, Word* to, int across, int threads) const;
  // Offsets of the i-th index of all axes but the innermost and `skipped`.
  std::pair<int64_t, int64_t> offsets(int64_t i, int skipped) const;

  std::array<Axis, kMaxRank> axes_{};
  int rank_ = 0;
  bool empty_ = false;
};

}  // namespace graft::cpu
