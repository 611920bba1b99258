#include "pjrt/named_values.h"

namespace graft::pjrt {
namespace {

struct Setter {
  PJRT_NamedValue& to;

  void operator()(const std::string& v) const {
    to.type = PJRT_NamedValue_kString;
    to.string_value = v.data();
    to.value_size = v.size();
  }
  void operator()(int64_t v) const {
    to.type = PJRT_NamedValue_kInt64;
    to.int64_value = v;
  }
  void operator()(const std::vector<int64_t>& v) const {
    to.type = PJRT_NamedValue_kInt64List;
    to.int64_array_value = v.data();
    to.value_size = v.size();
  }
  void operator()(float v) const {
    to.type = PJRT_NamedValue_kFloat;
    to.float_value = v;
  }
  void operator()(bool v) const {
    to.type = PJRT_NamedValue_kBool;
    to.bool_value = v;
  }
};

Option read(const PJRT_NamedValue& value) {
  switch (value.type) {
    case PJRT_NamedValue_kInt64: return value.int64_value;
    case PJRT_NamedValue_kInt64List:
      return std::vector<int64_t>(value.int64_array_value,
                                  value.int64_array_value + value.value_size);
    case PJRT_NamedValue_kFloat: return value.float_value;
    case PJRT_NamedValue_kBool: return value.bool_value;
    case PJRT_NamedValue_kString: break;
  }
  return std::string(value.string_value, value.value_size);
}

}  // namespace

std::vector<PJRT_NamedValue> named_values(const Options& options) {
  std::vector<PJRT_NamedValue> values;
  for (const auto& [name, option] : options) {
    GRAFT_PJRT_ARGS(PJRT_NamedValue, value);
    value.name = name.data();
    value.name_size = name.size();
    value.value_size = 1;
    std::visit(Setter{value}, option);
    values.push_back(value);
  }
  return values;
}

Options read_named_values(std::span<const PJRT_NamedValue> values) {
  Options options;
  for (const PJRT_NamedValue& value : values) {
    options.emplace(std::string(value.name, value.name_size), read(value));
  }
  return options;
}

}  // namespace graft::pjrt
