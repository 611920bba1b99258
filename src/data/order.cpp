#include "data/order.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace graft {
namespace {

// Bit s tells whether some rows' lengths add up to s.
class Sums {
 public:
  explicit Sums(int64_t largest)
      : words_(static_cast<size_t>(largest / 64 + 1), 0), largest_(largest) {
    words_[0] = 1;
  }
  bool has(int64_t sum) const {
    return sum >= 0 && (words_[static_cast<size_t>(sum / 64)] >> (sum % 64) & 1) != 0;
  }
  int64_t highest() const {
    size_t word = words_.size();
    while (words_[word - 1] == 0) --word;
    return static_cast<int64_t>(word * 64) - 1 - std::countl_zero(words_[word - 1]);
  }
  // Each sum there is, with and without `length` more.
  void add(int64_t length) {
    const auto whole = static_cast<size_t>(length / 64);
    const int part = static_cast<int>(length % 64);
    // From the top down, so that every word is read before it changes.
    for (size_t word = words_.size(); word-- > whole;) {
      uint64_t moved = words_[word - whole] << part;
      if (part != 0 && word > whole) moved |= words_[word - whole - 1] >> (64 - part);
      words_[word] |= moved;
    }
    if (const int used = static_cast<int>(largest_ % 64) + 1; used < 64) {
      words_.back() &= (uint64_t{1} << used) - 1;
    }
  }

 private:
  std::vector<uint64_t> words_;
  int64_t largest_;
};

// Rows not yet packed, by their length, longest first.
class RowsLeft {
 public:
  RowsLeft(std::span<const int64_t> order, std::span<const int64_t> lengths, int64_t capacity) {
    for (size_t rank = order.size(); rank-- > 0;) {
      const int64_t length = lengths[static_cast<size_t>(order[rank])];
      GRAFT_CHECK(length > 0 && length <= capacity, "a row of {} tokens in packs of {}", length,
                  capacity);
      by_length_[length].push_back(rank);
    }
  }
  bool empty() const { return by_length_.empty(); }
  int64_t longest() const { return by_length_.begin()->first; }

  size_t take(int64_t length) {
    const auto it = by_length_.find(length);
    const size_t rank = it->second.back();  // the first in the order
    it->second.pop_back();
    if (it->second.empty()) by_length_.erase(it);
    return rank;
  }

  // Lengths of rows left whose sum is as near to `room` as can be, and not more. A few dozen
  // different lengths reach nearly every sum, so it does not pay to look at more: where there are
  // many, they are taken at a distance from each other.
  std::vector<int64_t> best_filling(int64_t room) const {
    constexpr int64_t kMostLengths = 64;
    struct Step {
      int64_t length, count;  // this many rows more
      Sums before;
    };
    std::vector<Step> steps;
    Sums sums(room);
    auto it = by_length_.lower_bound(room);
    if (it == by_length_.end()) return {};
    const int64_t distance =
        std::max<int64_t>(1, (it->first - by_length_.rbegin()->first) / kMostLengths);
    for (; it != by_length_.end() && !sums.has(room);
         it = by_length_.lower_bound(it->first - distance)) {
      int64_t left = std::min(static_cast<int64_t>(it->second.size()), room / it->first);
      for (int64_t count = 1; left > 0; left -= count, count *= 2) {
        count = std::min(count, left);
        steps.push_back({it->first, count, sums});
        sums.add(it->first * count);
      }
    }
    std::vector<int64_t> chosen;
    int64_t sum = sums.highest();
    for (size_t i = steps.size(); i-- > 0;) {
      if (steps[i].before.has(sum)) continue;
      chosen.insert(chosen.end(), static_cast<size_t>(steps[i].count), steps[i].length);
      sum -= steps[i].length * steps[i].count;
    }
    return chosen;
  }

 private:
  std::map<int64_t, std::vector<size_t>, std::greater<>> by_length_;
};

}  // namespace

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
  RowsLeft left(order, lengths, capacity);
  std::vector<std::vector<size_t>> packs;
  while (!left.empty()) {
    const int64_t longest = left.longest();
    std::vector<size_t> pack = {left.take(longest)};
    if (longest < capacity) {
      for (const int64_t length : left.best_filling(capacity - longest))
        pack.push_back(left.take(length));
    }
    std::sort(pack.begin(), pack.end());
    packs.push_back(std::move(pack));
  }
  std::sort(packs.begin(), packs.end());
  std::vector<std::vector<int64_t>> result(packs.size());
  for (size_t i = 0; i < packs.size(); ++i) {
    for (const size_t rank : packs[i]) result[i].push_back(order[rank]);
  }
  return result;
}

}  // namespace graft
