#include "ir/scan.h"

#include "ir/autodiff.h"

namespace graft {

ScanLayout ScanLayout::of(const Attributes& a) {
  ScanLayout layout;
  layout.length = a.i64("length");
  layout.reverse = a.flag("reverse");
  layout.carries = static_cast<int>(a.i64("carries"));
  layout.invariants = static_cast<int>(a.i64("invariants"));
  layout.stacked_in = static_cast<int>(a.i64("stacked_in"));
  layout.lists_in = static_cast<int>(a.i64("lists_in"));
  layout.stacked_out = static_cast<int>(a.i64("stacked_out"));
  layout.lists_out = static_cast<int>(a.i64("lists_out"));
  return layout;
}

Attributes ScanLayout::attributes() const {
  Attributes a{{"length", length},         {"carries", carries},   {"invariants", invariants},
               {"stacked_in", stacked_in}, {"lists_in", lists_in}, {"stacked_out", stacked_out},
               {"lists_out", lists_out}};
  if (reverse) a.set("reverse", true);
  return a;
}

namespace {

Type slice_type(const Type& stacked) {
  return {stacked.dtype, Shape(stacked.shape.begin() + 1, stacked.shape.end())};
}

Type stack_type(const Type& slice, int64_t length) {
  Type type = slice;
  type.shape.insert(type.shape.begin(), length);
  return type;
}

void expect_same(const Type& operand, const Type& body, const char* role, size_t index) {
  if (operand == body) return;
  throw Error(fmt::format("scan: {} {} is {} outside the body and {} inside", role, index,
                          to_string(operand), to_string(body)));
}

// The order of operands and results is stated in scan.h.
std::vector<Type> infer_scan(const Call& call) {
  const ScanLayout layout = ScanLayout::of(call.attributes);
  GRAFT_CHECK(call.bodies.size() == 1 && layout.length > 0);
  const Graph& body = *call.bodies[0];
  GRAFT_CHECK(static_cast<int>(call.operands.size()) == layout.operand_count());
  GRAFT_CHECK(static_cast<int>(body.inputs().size()) == layout.body_inputs());
  GRAFT_CHECK(static_cast<int>(body.outputs().size()) == layout.body_outputs());

  const auto body_input = [&](int i) -> const Type& {
    return body.type(body.inputs()[static_cast<size_t>(i)].value);
  };
  const auto body_output = [&](int i) -> const Type& {
    return body.type(body.outputs()[static_cast<size_t>(i)].value);
  };
  int next = 0;
  for (int i = 0; i < layout.carries; ++i, ++next) {
    const Type& carry = call.operands[static_cast<size_t>(next)];
    expect_same(carry, body_input(next), "carry", static_cast<size_t>(i));
    expect_same(carry, body_output(i), "new carry", static_cast<size_t>(i));
  }
  for (int i = 0; i < layout.invariants; ++i, ++next) {
    expect_same(call.operands[static_cast<size_t>(next)], body_input(next), "invariant",
                static_cast<size_t>(i));
  }
  for (int i = 0; i < layout.stacked_in; ++i, ++next) {
    const Type& stacked = call.operands[static_cast<size_t>(next)];
    if (stacked.shape.empty() || stacked.shape[0] != layout.length) {
      throw Error(fmt::format("scan: stacked operand {} is {}, not [{}, ...]", i,
                              to_string(stacked), layout.length));
    }
    expect_same(slice_type(stacked), body_input(next), "stacked operand", static_cast<size_t>(i));
  }
  for (int list = 0; list < layout.lists_in; ++list, ++next) {
    for (int64_t i = 0; i < layout.length; ++i) {
      expect_same(call.operands[static_cast<size_t>(layout.list_operand(list, i))],
                  body_input(next), "list", static_cast<size_t>(list));
    }
  }

  std::vector<Type> results;
  int out = 0;
  for (; out < layout.carries; ++out) results.push_back(body_output(out));
  for (int i = 0; i < layout.stacked_out; ++i, ++out) {
    results.push_back(stack_type(body_output(out), layout.length));
  }
  for (int list = 0; list < layout.lists_out; ++list, ++out) {
    results.insert(results.end(), static_cast<size_t>(layout.length), body_output(out));
  }
  return results;
}

}  // namespace

const Op kScan{.name = "scan", .primitive = true, .infer = infer_scan, .gradient = scan_gradient};

std::vector<Value> add_scan(Graph& graph, const ScanLayout& layout, std::span<const Value> operands,
                            std::shared_ptr<const Graph> body) {
  return graph.add(kScan, operands, layout.attributes(), {std::move(body)});
}

ScanResults scan(Graph& graph, int64_t length, const ScanOperands& operands,
                 const std::function<void(ScanBody&)>& body_function, bool reverse) {
  ScanLayout layout;
  layout.length = length;
  layout.reverse = reverse;
  layout.carries = static_cast<int>(operands.carries.size());
  layout.invariants = static_cast<int>(operands.invariants.size());
  layout.stacked_in = static_cast<int>(operands.stacked.size());
  layout.lists_in = static_cast<int>(operands.lists.size());

  auto body_graph = std::make_shared<Graph>();
  ScanBody body;
  body.graph_ = body_graph.get();
  std::vector<Value> flat;
  const auto enter = [&](Value operand, const Type& type, const char* role, size_t i) {
    flat.push_back(operand);
    return body_graph->input(fmt::format("{}{}", role, i), type);
  };
  for (size_t i = 0; i < operands.carries.size(); ++i) {
    const Value v = operands.carries[i];
    body.carries_.push_back(enter(v, v.type(), "carry", i));
  }
  for (size_t i = 0; i < operands.invariants.size(); ++i) {
    const Value v = operands.invariants[i];
    body.invariants_.push_back(enter(v, v.type(), "invariant", i));
  }
  for (size_t i = 0; i < operands.stacked.size(); ++i) {
    const Value v = operands.stacked[i];
    if (v.rank() == 0) throw Error("scan: a stacked operand is a scalar");
    body.stacked_.push_back(enter(v, slice_type(v.type()), "stacked", i));
  }
  for (size_t i = 0; i < operands.lists.size(); ++i) {
    const std::vector<Value>& list = operands.lists[i];
    if (static_cast<int64_t>(list.size()) != length) {
      throw Error(
          fmt::format("scan: list {} has {} values for {} iterations", i, list.size(), length));
    }
    body.elements_.push_back(body_graph->input(fmt::format("list{}", i), list[0].type()));
    flat.insert(flat.end(), list.begin(), list.end());
  }

  body.carries_out_.resize(operands.carries.size());
  body_function(body);
  for (size_t i = 0; i < body.carries_out_.size(); ++i) {
    GRAFT_CHECK(body.carries_out_[i].defined(), "scan: carry {} is not set by the body", i);
    body_graph->output(fmt::format("carry{}", i), body.carries_out_[i]);
  }
  for (Value v : body.stacked_out_) body_graph->output("stacked", v);
  for (Value v : body.lists_out_) body_graph->output("list", v);
  layout.stacked_out = static_cast<int>(body.stacked_out_.size());
  layout.lists_out = static_cast<int>(body.lists_out_.size());

  const std::vector<Value> results = add_scan(graph, layout, flat, std::move(body_graph));
  ScanResults named;
  auto next = results.begin();
  named.carries.assign(next, next + layout.carries);
  next += layout.carries;
  named.stacked.assign(next, next + layout.stacked_out);
  next += layout.stacked_out;
  for (int list = 0; list < layout.lists_out; ++list) {
    named.lists.emplace_back(next, next + length);
    next += length;
  }
  return named;
}

}  // namespace graft
