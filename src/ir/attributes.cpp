#include "ir/attributes.h"

#include <fmt/ranges.h>

#include <cstring>

namespace graft {
namespace {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

bool same_tensor(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == b.bytes() || std::memcmp(a.bytes(), b.bytes(), a.size_bytes()) == 0);
}

}  // namespace

std::string Attribute::to_string() const {
  return std::visit(Overloaded{
                        [](bool v) { return std::string(v ? "true" : "false"); },
                        [](int64_t v) { return std::to_string(v); },
                        [](double v) { return fmt::format("{}", v); },
                        [](const std::string& v) { return fmt::format("\"{}\"", v); },
                        [](const Integers& v) { return fmt::format("[{}]", fmt::join(v, ", ")); },
                        [](DType v) { return std::string(dtype_name(v)); },
                        [](const Tensor& v) {
                          return fmt::format("literal {}{}", dtype_name(v.dtype()),
                                             graft::to_string(v.shape()));
                        },
                    },
                    value_);
}

bool operator==(const Attribute& a, const Attribute& b) {
  if (a.value_.index() != b.value_.index()) return false;
  if (const Tensor* t = a.get<Tensor>()) return same_tensor(*t, *b.get<Tensor>());
  // Doubles by bits, so that -0 and 0 stay apart and NaN equals itself.
  if (const double* d = a.get<double>())
    return std::memcmp(d, b.get<double>(), sizeof(double)) == 0;
  return std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, double>) {
          return false;  // handled above
        } else {
          return v == *b.get<T>();
        }
      },
      a.value_);
}

bool Attributes::has(std::string_view name) const { return map_.find(name) != map_.end(); }

const Attribute& Attributes::at(std::string_view name) const {
  auto it = map_.find(name);
  GRAFT_CHECK(it != map_.end(), "no attribute \"{}\"", name);
  return it->second;
}

namespace {

template <typename T>
const T& typed(const Attribute& attribute, std::string_view name) {
  const T* value = attribute.get<T>();
  GRAFT_CHECK(value != nullptr, "attribute \"{}\" is of another type: {}", name,
              attribute.to_string());
  return *value;
}

}  // namespace

bool Attributes::flag(std::string_view name) const {
  return has(name) && typed<bool>(at(name), name);
}
int64_t Attributes::i64(std::string_view name) const { return typed<int64_t>(at(name), name); }
double Attributes::f64(std::string_view name) const { return typed<double>(at(name), name); }
DType Attributes::dtype(std::string_view name) const { return typed<DType>(at(name), name); }
const std::string& Attributes::text(std::string_view name) const {
  return typed<std::string>(at(name), name);
}
const std::vector<int64_t>& Attributes::integers(std::string_view name) const {
  return typed<Attribute::Integers>(at(name), name);
}
const Tensor& Attributes::tensor(std::string_view name) const {
  return typed<Tensor>(at(name), name);
}

std::string Attributes::to_string() const {
  if (map_.empty()) return "";
  std::string text = "{";
  for (const auto& [name, value] : map_) {
    if (text.size() > 1) text += ", ";
    text += name + " = " + value.to_string();
  }
  return text + "}";
}

}  // namespace graft
