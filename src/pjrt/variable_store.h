#pragma once
// The variables of a PJRT executor: on the host as they were given, on the devices as programs want
// them.
//
// A program wants bundles (pjrt/lower.h): one variable, or the stack of several. The array of a
// bundle is made when a program first wants it. When a program replaces it, that array is the truth
// for its members: other arrays that hold one of them are dropped, and the host's tensors are
// fetched again when they are asked for.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/variable.h"
#include "pjrt/device_array.h"
#include "pjrt/lower.h"
#include "sharding/rules.h"

namespace graft::pjrt {

// Member `index` of a stack [n, ...], owned.
Tensor member_of(const Tensor& stack, size_t index);

class VariableStore {
 public:
  void set_layout(const Mesh& mesh, const AxisRules& rules) {
    mesh_ = mesh;
    rules_ = rules;
  }

  void set(const VariableSpec& spec, Tensor value);
  bool contains(const std::string& name) const { return variables_.contains(name); }
  Tensor value(const std::string& name);  // fetched if a program has replaced it

  NamedSharding sharding(const std::string& name) const;
  // The array on the devices, made if it is not there. Valid until the next call of anything.
  const DeviceArray& array(const Client& client, const Bundle& bundle,
                           const NamedSharding& sharding);
  void replace(const Bundle& bundle, DeviceArray array);

 private:
  struct Variable {
    VariableSpec spec;
    Tensor host;
    std::string newest;        // the key of the array that is newer than `host`; empty: none is
    std::set<std::string> in;  // keys of the arrays that hold it
  };
  struct Held {
    Bundle bundle;
    DeviceArray array;
  };

  static std::string key_of(const Bundle& bundle);
  void drop(const std::string& key);
  void rescue(const std::string& key, const std::vector<std::string>& but);

  Mesh mesh_;
  AxisRules rules_;
  std::map<std::string, Variable> variables_;
  std::map<std::string, Held> arrays_;
};

}  // namespace graft::pjrt
