#include "pjrt/variable_store.h"

#include <algorithm>

#include "sharding/resolve.h"

namespace graft::pjrt {

Tensor member_of(const Tensor& stack, size_t index) {
  Shape shape(stack.shape().begin() + 1, stack.shape().end());
  const auto i = static_cast<int64_t>(index);
  return stack.rows(i, i + 1).reshaped(shape).clone();
}

std::string VariableStore::key_of(const Bundle& bundle) {
  std::string key = bundle.stacked ? "[" : "";
  for (const std::string& name : bundle.names) key += name + '\n';
  return key;
}

void VariableStore::drop(const std::string& key) {
  const auto held = arrays_.find(key);
  if (held == arrays_.end()) return;
  for (const std::string& name : held->second.bundle.names) variables_.at(name).in.erase(key);
  arrays_.erase(held);
}

// The members of an array that goes away must not go with it, but for those that are given a new
// value.
void VariableStore::rescue(const std::string& key, const std::vector<std::string>& but) {
  const std::vector<std::string> names = arrays_.at(key).bundle.names;
  for (const std::string& name : names) {
    if (variables_.at(name).newest != key) continue;
    if (std::find(but.begin(), but.end(), name) == but.end()) value(name);
  }
}

void VariableStore::set(const VariableSpec& spec, Tensor value) {
  Variable& variable = variables_[spec.name];
  const std::set<std::string> holders = variable.in;
  for (const std::string& key : holders) rescue(key, {spec.name});
  for (const std::string& key : holders) drop(key);
  variable.spec = spec;
  variable.host = std::move(value);
  variable.newest.clear();
}

Tensor VariableStore::value(const std::string& name) {
  Variable& variable = variables_.at(name);
  if (variable.newest.empty()) return variable.host;
  const Held& held = arrays_.at(variable.newest);
  const Tensor whole = held.array.fetch();
  // All members come with it.
  const std::string key = variable.newest;
  for (size_t i = 0; i < held.bundle.names.size(); ++i) {
    Variable& member = variables_.at(held.bundle.names[i]);
    if (member.newest != key) continue;
    member.host = held.bundle.stacked ? member_of(whole, i) : whole;
    member.newest.clear();
  }
  return variable.host;
}

NamedSharding VariableStore::sharding(const std::string& name) const {
  return variable_sharding(variables_.at(name).spec, mesh_, rules_);
}

const DeviceArray& VariableStore::array(const Client& client, const Bundle& bundle,
                                        const NamedSharding& sharding) {
  const std::string key = key_of(bundle);
  if (const auto held = arrays_.find(key); held != arrays_.end()) return held->second.array;
  std::vector<Tensor> parts;
  for (const std::string& name : bundle.names) parts.push_back(value(name));
  DeviceArray array = put_array(client, parts, bundle.stacked, sharding);
  for (const std::string& name : bundle.names) variables_.at(name).in.insert(key);
  return arrays_.emplace(key, Held{bundle, std::move(array)}).first->second.array;
}

void VariableStore::replace(const Bundle& bundle, DeviceArray array) {
  const std::string key = key_of(bundle);
  for (const std::string& name : bundle.names) {
    Variable& variable = variables_.at(name);
    const std::set<std::string> holders = variable.in;
    for (const std::string& other : holders) {
      if (other == key) continue;
      rescue(other, bundle.names);
      drop(other);
    }
    variable.newest = key;
    variable.in.insert(key);
  }
  arrays_.insert_or_assign(key, Held{bundle, std::move(array)});
}

}  // namespace graft::pjrt
