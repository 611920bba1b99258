// The last part of the plan: offsets in the arena, largest places first, each into the tightest
// gap.

#include <algorithm>
#include <numeric>
#include <span>

#include "cpu/plan.h"

namespace graft::cpu {
namespace {

constexpr size_t kAlignment = 64;

size_t align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Block {
  int place = 0;
  size_t bytes = 0;
  int begin = 0, end = 0;                  // hull of its lives
  std::vector<std::pair<int, int>> lives;  // sorted, disjoint but for touching moments
};

bool overlap(const Block& a, const Block& b) {
  if (a.end < b.begin || b.end < a.begin) return false;
  for (size_t i = 0, j = 0; i < a.lives.size() && j < b.lives.size();) {
    if (a.lives[i].second < b.lives[j].first) {
      ++i;
    } else if (b.lives[j].second < a.lives[i].first) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

std::vector<Block> arena_blocks(const Plan& plan) {
  std::vector<Block> blocks;
  for (size_t p = 0; p < plan.places.size(); ++p) {
    const Place& place = plan.places[p];
    if (place.members.empty() || place.fixed >= 0 || place.bytes == 0) continue;
    Block block;
    block.place = static_cast<int>(p);
    block.bytes = align(place.bytes);
    for (VariableId v : place.members) {
      block.lives.emplace_back(plan.variable(v).begin, plan.variable(v).end);
    }
    std::sort(block.lives.begin(), block.lives.end());
    block.begin = block.lives.front().first;
    for (const auto& life : block.lives) block.end = std::max(block.end, life.second);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

// Places blocks in the given order; returns the bytes needed.
size_t place_in_order(const std::vector<Block>& blocks, const std::vector<size_t>& order,
                      std::vector<size_t>& offsets) {
  std::vector<size_t> placed;  // by offset
  size_t total = 0;
  for (size_t b : order) {
    size_t best = 0, best_gap = SIZE_MAX, top = 0;
    for (size_t other : placed) {
      if (!overlap(blocks[b], blocks[other])) continue;
      if (offsets[other] >= top + blocks[b].bytes && offsets[other] - top < best_gap) {
        best_gap = offsets[other] - top;
        best = top;
      }
      top = std::max(top, offsets[other] + blocks[other].bytes);
    }
    offsets[b] = best_gap == SIZE_MAX ? top : best;
    total = std::max(total, offsets[b] + blocks[b].bytes);
    const auto at = std::upper_bound(placed.begin(), placed.end(), b,
                                     [&](size_t x, size_t y) { return offsets[x] < offsets[y]; });
    placed.insert(at, b);
  }
  return total;
}

std::string label(const Node& node) {
  return fmt::format("{}{}{}", node.op->name, node.scope.empty() ? "" : " ", node.scope);
}

// "%12 linear layers/mlp"; for what a scan keeps of its iterations, also the node of its body.
std::string describe(const Variable& variable) {
  const Node& node = *variable.node;
  std::string text = fmt::format("%{} {}", variable.value, label(node));
  if (node.op != &kScan) return text;
  const ScanLayout s = ScanLayout::of(node);
  const auto result = std::find(node.results.begin(), node.results.end(), variable.value);
  int64_t output = result - node.results.begin();
  const int64_t list = output - s.carries - s.stacked_out;
  if (list >= 0) output = s.carries + s.stacked_out + list / s.length;
  const Graph& body = *node.bodies[0];
  const ValueId value = body.outputs()[static_cast<size_t>(output)].value;
  const int maker = body.defining_node(value);
  return fmt::format("{}: {}", text,
                     maker < 0 ? body.inputs()[static_cast<size_t>(body.input_index(value))].name
                               : label(body.nodes()[static_cast<size_t>(maker)]));
}

void list_largest(Plan& plan, std::vector<Block> blocks) {
  constexpr size_t kListed = 10;
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Block& a, const Block& b) { return a.bytes > b.bytes; });
  for (size_t i = 0; i < std::min(kListed, blocks.size()); ++i) {
    const Place& place = plan.places[static_cast<size_t>(blocks[i].place)];
    std::string name = "scratch";
    for (VariableId v : place.members) {
      const Variable& variable = plan.variable(v);
      if (variable.node == nullptr) continue;
      name = describe(variable);
      break;
    }
    plan.memory.largest.push_back({std::move(name), place.bytes});
  }
}

}  // namespace

void assign_offsets(Plan& plan) {
  const std::vector<Block> blocks = arena_blocks(plan);
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  const auto by = [&](auto key) {
    std::vector<size_t> sorted = order;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](size_t a, size_t b) { return key(blocks[a]) > key(blocks[b]); });
    return sorted;
  };
  // No one order is best for all graphs; the better of two is kept.
  std::vector<size_t> offsets(blocks.size()), other(blocks.size());
  size_t total = place_in_order(blocks, by([](const Block& b) { return b.bytes; }), offsets);
  const size_t by_area = place_in_order(
      blocks, by([](const Block& b) { return b.bytes * static_cast<size_t>(b.end - b.begin + 1); }),
      other);
  if (by_area < total) {
    total = by_area;
    offsets.swap(other);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    plan.places[static_cast<size_t>(blocks[i].place)].offset = offsets[i];
  }
  plan.memory.arena_bytes = total;
  list_largest(plan, blocks);
}

Plan make_plan(const Graph& graph, int threads) {
  Plan plan = plan_lifetimes(graph, threads);
  join_places(plan);
  assign_offsets(plan);
  return plan;
}

}  // namespace graft::cpu
