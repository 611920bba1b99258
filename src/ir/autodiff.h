#pragma once
// Reverse-mode differentiation of a graph, with respect to a chosen set of values.
//
// Only nodes on a path from a `wrt` value to the differentiated one are visited, and a gradient
// rule is asked only for the operands that need one: a frozen weight costs no gradient GEMM, and
// nothing runs backward below the first trained layer. Cotangents of a value used more than once
// are added in the reverse of graph order, the same inside a scan as unrolled.
//
//   Value loss = ...;
//   std::vector<Value> g = gradients(loss, trained, {.remat = Remat::kMinimal});

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace graft {

// What a scan keeps of its forward iterations for its backward ones; the rest is computed again.
enum class Remat : uint8_t {
  kNone,     // keep every value that the backward pass reads
  kMinimal,  // keep the results of expensive operations (GEMMs, attention)
  kFull,     // keep the carries alone
};
std::optional<Remat> remat_from_name(std::string_view name);  // "none", "minimal", "full"
std::string_view remat_name(Remat remat);

struct AutodiffOptions {
  Remat remat = Remat::kMinimal;
};

// d `of` / d each of `wrt`; `of` is a scalar. A value without influence gets a zero of its type.
std::vector<Value> gradients(Value of, std::span<const Value> wrt, AutodiffOptions options = {});

// The general form: cotangents of several values are given.
std::vector<Value> vector_jacobian_product(std::span<const Value> of,
                                           std::span<const Value> cotangents,
                                           std::span<const Value> wrt,
                                           AutodiffOptions options = {});

// What a gradient rule works with.
class GradientContext {
 public:
  GradientContext(Graph& graph, int node, std::vector<Value> cotangents, std::vector<bool> needed,
                  AutodiffOptions options);

  Graph& graph() const { return graph_; }
  int node_index() const { return node_; }
  const Node& node() const { return graph_.nodes()[static_cast<size_t>(node_)]; }
  const Attributes& attributes() const { return node().attributes; }
  const AutodiffOptions& options() const { return options_; }

  size_t operand_count() const { return needed_.size(); }
  Value operand(size_t i) const;
  Value result(size_t i) const;
  // Cotangent of result i; undefined if nothing depends on it.
  Value cotangent(size_t i) const { return cotangents_.at(i); }
  // Whether the cotangent of operand i is wanted.
  bool needs(size_t i) const { return needed_.at(i); }
  void set(size_t i, Value gradient);  // checked against the operand's type; ignored if not needed

  const std::vector<Value>& results() const { return operand_gradients_; }

 private:
  Graph& graph_;
  int node_;
  std::vector<Value> cotangents_;
  std::vector<bool> needed_;
  AutodiffOptions options_;
  std::vector<Value> operand_gradients_;
};

// The gradient of scan, set in kScan: scans backward over what the policy kept.
void scan_gradient(GradientContext& context);

}  // namespace graft
