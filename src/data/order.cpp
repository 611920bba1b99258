#include "data/order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace graft {

std::vector<int64_t> epoch_order(int64_t n, bool shuffle, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!shuffle) return order;
  Philox random(seed, fnv1a_32(fmt::format("data.order.{}", epoch)));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

std::vector<std::vector<int64_t>> pack_rows(std::span<const int64_t> order,
                                            std::span<const int64_t> lengths, int64_t capacity) {
  // Ranks in the order, longest row first; among equals the order decides.
  std::vector<size_t> ranks(order.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  const auto length_at = [&](size_t rank) { return lengths[static_cast<size_t>(order[rank])]; };
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](size_t a, size_t b) { return length_at(a) > length_at(b); });

  std::vector<std::vector<size_t>> packs;
  std::map<int64_t, std::vector<size_t>> open;  // room left -> packs with that much
  for (const size_t rank : ranks) {
    const int64_t length = length_at(rank);
    GRAFT_CHECK(length <= capacity, "a row of {} tokens exceeds {}", length, capacity);
    const auto best = open.lower_bound(length);
    size_t pack = packs.size();
    int64_t room = capacity;
    if (best == open.end()) {
      packs.emplace_back();
    } else {
      room = best->first;
      pack = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) open.erase(best);
    }
    packs[pack].push_back(rank);
    open[room - length].push_back(pack);
  }

  for (std::vector<size_t>& pack : packs) std::sort(pack.begin(), pack.end());
  std::sort(packs.begin(), packs.end());
  std::vector<std::vector<int64_t>> result(packs.size());
  for (size_t i = 0; i < packs.size(); ++i) {
    for (const size_t rank : packs[i]) result[i].push_back(order[rank]);
  }
  return result;
}

}  // namespace graft
