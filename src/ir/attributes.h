#pragma once
// The compile-time constants of an operation: a small ordered map from name to value. Being generic
// they print, compare and hash in one place.
//
//   Attributes{{"axis", 1}, {"keep", true}}.i64("axis")  // 1

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"

namespace graft {

class Attribute {
 public:
  using Integers = std::vector<int64_t>;

  Attribute(bool v) : value_(v) {}
  Attribute(int v) : value_(static_cast<int64_t>(v)) {}
  Attribute(int64_t v) : value_(v) {}
  Attribute(double v) : value_(v) {}
  Attribute(const char* v) : value_(std::string(v)) {}
  Attribute(std::string v) : value_(std::move(v)) {}
  Attribute(Integers v) : value_(std::move(v)) {}
  Attribute(DType v) : value_(v) {}
  Attribute(Tensor v) : value_(std::move(v)) {}

  template <typename T>
  const T* get() const {
    return std::get_if<T>(&value_);
  }
  std::string to_string() const;
  friend bool operator==(const Attribute& a, const Attribute& b);  // tensors: equal bytes

 private:
  std::variant<bool, int64_t, double, std::string, Integers, DType, Tensor> value_;
};

class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, Attribute>> items) : map_(items) {}

  bool has(std::string_view name) const;
  void set(const std::string& name, Attribute value) {
    map_.insert_or_assign(name, std::move(value));
  }

  // An absent name or a value of another type is a fault in graft (GRAFT_CHECK).
  bool flag(std::string_view name) const;  // false when absent
  int64_t i64(std::string_view name) const;
  double f64(std::string_view name) const;
  DType dtype(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  const std::vector<int64_t>& integers(std::string_view name) const;
  const Tensor& tensor(std::string_view name) const;

  std::string to_string() const;  // {axis = 1, keep = true}; empty when there are none
  bool empty() const { return map_.empty(); }
  auto begin() const { return map_.begin(); }
  auto end() const { return map_.end(); }
  friend bool operator==(const Attributes& a, const Attributes& b) { return a.map_ == b.map_; }

 private:
  const Attribute& at(std::string_view name) const;
  std::map<std::string, Attribute, std::less<>> map_;
};

}  // namespace graft
