#pragma once
// scan: one body run L times in sequence, for stacks of layers, micro-batches and blocks of
// attention.
//
// A body sees, in this order, and returns:
//   inputs:  carries | invariants | slices of stacked operands | elements of lists
//   outputs: new carries | slices of stacked results | elements of list results
// A carry goes from one iteration to the next. An invariant is the same in each. A stacked operand
// [L, ...] gives its i-th slice; a list, L values of one type, its i-th element (so the variables
// of L layers need not lie together). Results likewise: the final carries, stacked [L, ...], lists
// of L values. With `reverse`, iterations run from L-1 down to 0.
//
// Operands of the node: carries, invariants, stacked, then each list's L values in turn.
// Results of the node: carries, stacked, then each list's L values in turn.
//
//   Value total = scan(g, 4, {.carries = {zero}, .stacked = {xs}}, [](ScanBody& body) {
//     body.carry_out(0, body.carry(0) + body.stacked(0));
//   }).carries[0];

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace graft {

extern const Op kScan;

// The counts that a scan node's attributes hold; offsets follow from them.
struct ScanLayout {
  int64_t length = 0;
  bool reverse = false;
  int carries = 0, invariants = 0, stacked_in = 0, lists_in = 0;
  int stacked_out = 0, lists_out = 0;

  static ScanLayout of(const Attributes& attributes);
  static ScanLayout of(const Node& node) { return of(node.attributes); }
  Attributes attributes() const;

  int body_inputs() const { return carries + invariants + stacked_in + lists_in; }
  int body_outputs() const { return carries + stacked_out + lists_out; }
  int operand_count() const {
    return carries + invariants + stacked_in + lists_in * static_cast<int>(length);
  }
  int result_count() const { return carries + stacked_out + lists_out * static_cast<int>(length); }
  // Index among the node's operands / results of element `i` of list `list`.
  int list_operand(int list, int64_t i) const {
    return carries + invariants + stacked_in + list * static_cast<int>(length) +
           static_cast<int>(i);
  }
  int list_result(int list, int64_t i) const {
    return carries + stacked_out + list * static_cast<int>(length) + static_cast<int>(i);
  }
};

struct ScanOperands {
  std::vector<Value> carries = {}, invariants = {}, stacked = {};
  std::vector<std::vector<Value>> lists = {};
};

struct ScanResults {
  std::vector<Value> carries, stacked;
  std::vector<std::vector<Value>> lists;
};

// What a body function works with: the graph of the body and its inputs by role.
class ScanBody {
 public:
  Graph& graph() { return *graph_; }
  Value carry(size_t i) const { return carries_.at(i); }
  Value invariant(size_t i) const { return invariants_.at(i); }
  Value stacked(size_t i) const { return stacked_.at(i); }
  Value element(size_t list) const { return elements_.at(list); }

  void carry_out(size_t i, Value v) { carries_out_.at(i) = v; }  // every carry must be set
  void stacked_out(Value v) { stacked_out_.push_back(v); }
  void list_out(Value v) { lists_out_.push_back(v); }

 private:
  friend ScanResults scan(Graph&, int64_t, const ScanOperands&,
                          const std::function<void(ScanBody&)>&, bool);
  Graph* graph_ = nullptr;
  std::vector<Value> carries_, invariants_, stacked_, elements_;
  std::vector<Value> carries_out_, stacked_out_, lists_out_;
};

ScanResults scan(Graph& graph, int64_t length, const ScanOperands& operands,
                 const std::function<void(ScanBody&)>& body, bool reverse = false);

// Adds a scan whose body is already a graph (passes and gradients make these).
std::vector<Value> add_scan(Graph& graph, const ScanLayout& layout, std::span<const Value> operands,
                            std::shared_ptr<const Graph> body);

}  // namespace graft
