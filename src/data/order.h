#pragma once
// The order in which the rows of a data set are trained.
//
// An epoch is a permutation of the rows, a function of the seed and the epoch's number alone:
// Fisher and Yates's shuffle with Philox numbers. So a place in the order is two integers, and a
// run that is resumed there goes on exactly as if it had never stopped.
//
// With packing, an epoch is a list of packs instead: several rows that share one sequence of at
// most max_length tokens. Each pack takes the longest row left and, to fill what remains, the rows
// whose lengths add up to it most nearly. How many packs there are depends on the rows' lengths
// only, so every epoch has as many; which rows meet, and the order of the packs, is shuffled.

#include <cstdint>
#include <span>
#include <vector>

namespace graft {

// 0 ... n-1 in the order of this epoch; in their own order where not shuffled.
std::vector<int64_t> epoch_order(int64_t n, bool shuffle, uint64_t seed, int64_t epoch);

// Each inner list holds the elements of `order` that share a sequence, first in order first; packs
// are ordered by their first element. lengths[i]: tokens of row i, at most `capacity`.
std::vector<std::vector<int64_t>> pack_rows(std::span<const int64_t> order,
                                            std::span<const int64_t> lengths, int64_t capacity);

}  // namespace graft
