#pragma once
// Loops over a team of threads, for kernels.
//
// Units are parts of a kernel's output whose bounds depend on shapes only; which thread takes which
// unit is decided as they run and changes no bit.
//
//   parallel_for(call.threads, row_blocks, [&](int64_t unit, int thread) { ... });

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace graft::cpu {

inline int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_divide(a, b) * b; }

// f(unit, thread) for every unit, in no order; thread < threads and is f's alone while it runs.
template <typename F>
void parallel_for(int threads, int64_t units, const F& f) {
  const auto team = static_cast<int>(std::min<int64_t>(threads, units));
  if (team <= 1) {
    for (int64_t unit = 0; unit < units; ++unit) f(unit, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (int64_t unit = 0; unit < units; ++unit) f(unit, omp_get_thread_num());
}

// f(begin, end, thread) over runs of neighbouring units: what a thread has prepared for one unit
// may serve the next. How long the runs are depends on the team.
template <typename F>
void parallel_runs(int threads, int64_t units, const F& f) {
  constexpr int64_t kRunsPerThread = 2;
  const int64_t run = std::max<int64_t>(1, units / (int64_t{threads} * kRunsPerThread));
  parallel_for(threads, ceil_divide(units, run),
               [&](int64_t i, int thread) { f(i * run, std::min(units, (i + 1) * run), thread); });
}

// f(begin, end) over [0, n) in pieces of `grain`.
template <typename F>
void parallel_pieces(int threads, int64_t n, int64_t grain, const F& f) {
  parallel_for(threads, ceil_divide(n, grain),
               [&](int64_t piece, int) { f(piece * grain, std::min(n, (piece + 1) * grain)); });
}

// Lays out parts of a kernel's scratch behind each other, 64-byte aligned: first to count, then to
// place.
class ScratchLayout {
 public:
  // Bytes from here on belong to the part that starts at the returned offset.
  size_t add(int64_t elements, size_t element_bytes = sizeof(float)) {
    const size_t offset = bytes_;
    bytes_ += (static_cast<size_t>(elements) * element_bytes + 63) / 64 * 64;
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

}  // namespace graft::cpu
