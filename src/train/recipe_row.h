#pragma once
// How one row of the recipe's table (recipe_keys.cpp) reads, checks and writes its option, by type.

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "train/recipe_keys.h"

namespace graft {

// What a value may be: words for the message and the documentation, and the test.
template <typename T>
struct Rule {
  std::string text;
  std::function<bool(const T&)> holds = nullptr;
};

inline Rule<int64_t> whole(int64_t least, int64_t most = 1'000'000'000) {
  std::string text = fmt::format("whole number >= {}", least);
  if (most != 1'000'000'000) text = fmt::format("whole number from {} to {}", least, most);
  return {std::move(text), [=](const int64_t& x) { return x >= least && x <= most; }};
}
inline Rule<double> positive() {
  return {"number > 0", [](const double& x) { return x > 0; }};
}
inline Rule<double> not_negative() {
  return {"number >= 0", [](const double& x) { return x >= 0; }};
}
inline Rule<double> fraction() {
  return {"number from 0 to 1", [](const double& x) { return x >= 0 && x <= 1; }};
}
inline Rule<double> below_one() {
  return {"number from 0, less than 1", [](const double& x) { return x >= 0 && x < 1; }};
}

inline Rule<std::string> not_blank(std::string text) {
  return {std::move(text), [](const std::string& x) { return !x.empty(); }};
}

// ---- Reading and writing, a type at a time
// -------------------------------------------------------

inline void read_value(const YamlNode& node, bool& value) { value = node.as_boolean(); }
inline void read_value(const YamlNode& node, int64_t& value) { value = node.as_integer(); }
inline void read_value(const YamlNode& node, double& value) { value = node.as_number(); }
inline void read_value(const YamlNode& node, std::string& value) { value = node.as_string(); }

template <typename T>
void read_value(const YamlNode& node, std::vector<T>& value) {
  value.clear();
  if (node.kind != YamlNode::Kind::kSequence) {
    read_value(node, value.emplace_back());  // one element may stand without brackets
    return;
  }
  for (const YamlNode& element : node.elements) read_value(element, value.emplace_back());
}
template <typename T>
void read_value(const YamlNode& node, PatternList<T>& value) {
  if (node.kind != YamlNode::Kind::kMap) {
    throw Error(fmt::format("expected a mapping, not {}", node.describe()), node.where);
  }
  value.clear();
  for (const auto& [key, member] : node.members)
    read_value(member, value.emplace_back(key, T()).second);
}
template <typename T>
void read_value(const YamlNode& node, std::optional<T>& value) {
  read_value(node, value.emplace());
}
inline void read_value(const YamlNode& node, ModuleSelection& value) {
  value = {};
  if (node.kind == YamlNode::Kind::kSequence) {
    read_value(node, value.suffixes);
  } else {
    value.expression = node.as_string();
  }
}

inline std::string write_value(bool value) { return value ? "true" : "false"; }
inline std::string write_value(int64_t value) { return fmt::format("{}", value); }
inline std::string write_value(double value) { return fmt::format("{}", value); }
inline std::string write_value(const std::string& value) {
  return value.empty() ? "null" : quote_yaml(value);
}
template <typename T>
std::string write_value(const std::vector<T>& value) {
  std::string text;
  for (const T& element : value) text += (text.empty() ? "" : ", ") + write_value(element);
  return "[" + text + "]";
}
template <typename T>
std::string write_value(const PatternList<T>& value) {
  std::string text;
  for (const auto& [key, member] : value) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", quote_yaml(key), write_value(member));
  }
  return "{" + text + "}";
}
template <typename T>
std::string write_value(const std::optional<T>& value) {
  return value ? write_value(*value) : "null";
}
inline std::string write_value(const ModuleSelection& value) {
  if (value.expression) return quote_yaml(*value.expression);
  return value.suffixes.empty() ? "null" : write_value(value.suffixes);
}

// ---- Rows
// ----------------------------------------------------------------------------------------

template <typename T>
struct Unwrapped {
  using Type = T;
};
template <typename T>
struct Unwrapped<std::optional<T>> {
  using Type = T;
};
template <typename T>
struct Unwrapped<std::vector<T>> {
  using Type = T;
};
template <typename T>
struct Unwrapped<PatternList<T>> {
  using Type = T;
};
template <typename T>
struct Unwrapped<std::optional<std::vector<T>>> {
  using Type = T;
};

template <typename E>
bool follows(const Rule<E>& rule, const E& value) {
  return !rule.holds || rule.holds(value);
}
template <typename E, typename T>
bool follows(const Rule<E>& rule, const std::optional<T>& value) {
  return !value || follows(rule, *value);
}
template <typename E>
bool follows(const Rule<E>& rule, const std::vector<E>& value) {
  for (const E& element : value) {
    if (!follows(rule, element)) return false;
  }
  return true;
}
template <typename E>
bool follows(const Rule<E>& rule, const PatternList<E>& value) {
  for (const auto& [key, member] : value) {
    if (!follows(rule, member)) return false;
  }
  return true;
}

// A row of the table. `place` gives the option's place in a recipe; the rule holds for each element
// of a list or mapping.
template <typename Place, typename E>
RecipeKey row(std::string_view name, Place place, Rule<E> rule, std::string_view help) {
  using T = std::remove_reference_t<std::invoke_result_t<Place, Recipe&>>;
  static_assert(std::is_same_v<E, typename Unwrapped<T>::Type>);
  RecipeKey key{name, rule.text, "", help, nullptr, nullptr};
  key.read = [place, rule](Recipe& recipe, const YamlNode& node) {
    if (node.is_null()) {
      Recipe defaults;
      place(recipe) = place(defaults);
      return;
    }
    read_value(node, place(recipe));
    if (!follows(rule, place(recipe))) {
      const bool many = node.kind != YamlNode::Kind::kScalar && !std::is_same_v<E, T>;
      throw Error(many ? fmt::format("each value has to be a {}", rule.text)
                       : fmt::format("expected a {}, not {}", rule.text, node.describe()),
                  node.where);
    }
  };
  key.write = [place](const Recipe& recipe) {
    return write_value(place(const_cast<Recipe&>(recipe)));  // only read
  };
  key.default_text = key.write(Recipe());
  return key;
}

// An option that is one of a few words.
template <typename Place, typename Enum>
RecipeKey choice(std::string_view name, Place place, std::vector<Enum> values,
                 std::string_view (*name_of)(Enum), std::string_view help) {
  std::string type;
  for (const Enum value : values) type += (type.empty() ? "" : ", ") + std::string(name_of(value));
  if (values.size() > 1) type = "one of " + type;
  RecipeKey key{name, type, "", help, nullptr, nullptr};
  key.read = [=](Recipe& recipe, const YamlNode& node) {
    if (node.is_null()) {
      Recipe defaults;
      place(recipe) = place(defaults);
      return;
    }
    for (const Enum value : values) {
      if (node.kind == YamlNode::Kind::kScalar && node.text == name_of(value)) {
        place(recipe) = value;
        return;
      }
    }
    throw Error(fmt::format("expected {}, not {}", type, node.describe()), node.where);
  };
  key.write = [=](const Recipe& recipe) {
    return std::string(name_of(place(const_cast<Recipe&>(recipe))));  // only read
  };
  key.default_text = key.write(Recipe());
  return key;
}

// Any JSON-like mapping, kept as the text of one JSON object.
inline RecipeKey json_object(std::string_view name, std::string& (*place)(Recipe&),
                             std::string_view help) {
  RecipeKey key{name, "mapping", "{}", help, nullptr, nullptr};
  key.read = [place](Recipe& recipe, const YamlNode& node) {
    if (!node.is_null() && node.kind != YamlNode::Kind::kMap) {
      throw Error(fmt::format("expected a mapping, not {}", node.describe()), node.where);
    }
    place(recipe) = node.is_null() ? "{}" : yaml_to_json(node).dump();
  };
  // JSON with a space after each colon and comma is YAML.
  key.write = [place](const Recipe& recipe) {
    std::function<std::string(const nlohmann::json&)> write = [&](const nlohmann::json& value) {
      if (!value.is_structured()) return value.dump();
      std::string text;
      for (const auto& [member, element] : value.items()) {
        if (!text.empty()) text += ", ";
        if (value.is_object()) text += nlohmann::json(member).dump() + ": ";
        text += write(element);
      }
      return value.is_object() ? "{" + text + "}" : "[" + text + "]";
    };
    return write(nlohmann::json::parse(place(const_cast<Recipe&>(recipe))));
  };
  return key;
}

}  // namespace graft
