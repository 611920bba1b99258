#pragma once
// Operands of a stack of layers by name: what a layer's code asks for ("self_attn.q_proj.weight"),
// given once for all layers of the stack.

#include <map>
#include <string>
#include <vector>

#include "ir/scan.h"

namespace graft {

class StackOperands {
 public:
  // One value a layer. Where all are the same value it enters the scan as an invariant.
  void per_layer(const std::string& name, const std::vector<Value>& values);
  void shared(const std::string& name, Value value);
  bool has(const std::string& name) const { return slots_.contains(name); }

  const ScanOperands& operands() const { return operands_; }
  ScanOperands& operands() { return operands_; }
  // Inside the body: this layer's value of a name.
  Value get(const ScanBody& body, const std::string& name) const;

 private:
  struct Slot {
    bool list;
    size_t index;
  };
  ScanOperands operands_;
  std::map<std::string, Slot> slots_;
};

}  // namespace graft
