#include "models/stack.h"

#include <algorithm>

namespace graft {

void StackOperands::per_layer(const std::string& name, const std::vector<Value>& values) {
  if (std::all_of(values.begin(), values.end(), [&](Value v) { return v == values[0]; })) {
    shared(name, values[0]);
    return;
  }
  slots_[name] = {true, operands_.lists.size()};
  operands_.lists.push_back(values);
}

void StackOperands::shared(const std::string& name, Value value) {
  slots_[name] = {false, operands_.invariants.size()};
  operands_.invariants.push_back(value);
}

Value StackOperands::get(const ScanBody& body, const std::string& name) const {
  const auto it = slots_.find(name);
  GRAFT_CHECK(it != slots_.end(), "the stack has no operand \"{}\"", name);
  return it->second.list ? body.element(it->second.index) : body.invariant(it->second.index);
}

}  // namespace graft
