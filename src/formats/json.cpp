#include "formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace graft {
namespace {

using nlohmann::json;

// Watches the parser: it sees each object's keys as they come, which the finished document no
// longer shows.
class StrictnessCheck {
 public:
  explicit StrictnessCheck(const std::string& name) : name_(name) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= kJsonDepthLimit) {
        throw Error(fmt::format("is nested more than {} levels deep", kJsonDepthLimit), name_);
      }
    }
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        throw Error(fmt::format("the key \"{}\" is given twice in one object", key), name_);
      }
    }
    return true;
  }

 private:
  const std::string& name_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

// "syntax error while parsing value - unexpected end of input; expected '}'" from nlohmann's
// message, without its exception number and its own idea of the place.
std::string reason(const json::parse_error& error) {
  const std::string text = error.what();
  const size_t place = text.find("column ");
  const size_t colon = text.find(": ", place == std::string::npos ? 0 : place);
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

// Of the last character read, the byte-th counted from one.
std::string line_and_column(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, byte == 0 ? 0 : std::min(byte - 1, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t newline = before.rfind('\n');
  const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
  return fmt::format("{}:{}", line, before.size() - start + 1);
}

template <typename T>
struct Kind;
template <>
struct Kind<bool> {
  static constexpr const char* name = "true or false";
};
template <>
struct Kind<int64_t> {
  static constexpr const char* name = "a whole number";
};
template <>
struct Kind<double> {
  static constexpr const char* name = "a number";
};
template <>
struct Kind<std::string> {
  static constexpr const char* name = "a string";
};
template <>
struct Kind<std::vector<int64_t>> {
  static constexpr const char* name = "a list of whole numbers";
};
template <>
struct Kind<std::vector<double>> {
  static constexpr const char* name = "a list of numbers";
};
template <>
struct Kind<std::vector<std::string>> {
  static constexpr const char* name = "a list of strings";
};

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

std::optional<int64_t> whole_number(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    constexpr double limit =
        9007199254740992.0;  // 2^53: beyond, a double does not say which integer
    if (std::abs(number) <= limit && number == std::floor(number)) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

template <typename T>
std::optional<T> convert(const json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    if (value.is_boolean()) return value.get<bool>();
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return whole_number(value);
  } else if constexpr (std::is_same_v<T, double>) {
    if (value.is_number()) return value.get<double>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (value.is_string()) return value.get<std::string>();
  } else {
    static_assert(IsVector<T>::value);
    if (!value.is_array()) return std::nullopt;
    T list;
    list.reserve(value.size());
    for (const json& each : value) {
      auto element = convert<typename T::value_type>(each);
      if (!element) return std::nullopt;
      list.push_back(std::move(*element));
    }
    return list;
  }
  return std::nullopt;
}

// A value as it may stand in an error message: short.
std::string excerpt(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

json parse_json(std::string_view text, const std::string& name) {
  try {
    return json::parse(text.begin(), text.end(), StrictnessCheck(name));
  } catch (const json::parse_error& error) {
    throw Error("is not valid JSON: " + reason(error),
                fmt::format("{}:{}", name, line_and_column(text, error.byte)));
  } catch (const json::exception& error) {  // a number too large for a double
    throw Error(fmt::format("is not valid JSON: {}", error.what()), name);
  }
}

json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

JsonObject::JsonObject(const json& document, std::string file, std::string prefix)
    : object_(&document), file_(std::move(file)), prefix_(std::move(prefix)) {
  if (!document.is_object()) {
    const std::string place = prefix_.empty() ? file_ : file_ + ": " + prefix_;
    throw Error(fmt::format("must be a JSON object, not {}", excerpt(document)), place);
  }
}

const json* JsonObject::find(std::string_view key) const {
  const auto found = object_->find(std::string(key));
  return found == object_->end() ? nullptr : &*found;
}

bool JsonObject::has(std::string_view key) const {
  const json* value = find(key);
  return value != nullptr && !value->is_null();
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : object_->items()) keys.push_back(item.key());
  return keys;
}

std::string JsonObject::where(std::string_view key) const {
  return fmt::format("{}: {}{}{}", file_, prefix_, prefix_.empty() ? "" : ".", key);
}

void JsonObject::fail(std::string_view key, const std::string& problem,
                      const std::string& remedy) const {
  throw Error(problem, where(key), remedy);
}

template <typename T>
std::optional<T> JsonObject::optional(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  std::optional<T> value = convert<T>(*find(key));
  if (!value) fail(key, fmt::format("must be {}, not {}", Kind<T>::name, excerpt(*find(key))));
  return value;
}

template <typename T>
T JsonObject::required(std::string_view key) const {
  std::optional<T> value = optional<T>(key);
  if (!value) fail(key, find(key) == nullptr ? "is missing" : "must not be null");
  return *std::move(value);
}

#define GRAFT_JSON_GETTERS(T)                                             \
  template std::optional<T> JsonObject::optional(std::string_view) const; \
  template T JsonObject::required(std::string_view) const
GRAFT_JSON_GETTERS(bool);
GRAFT_JSON_GETTERS(int64_t);
GRAFT_JSON_GETTERS(double);
GRAFT_JSON_GETTERS(std::string);
GRAFT_JSON_GETTERS(std::vector<int64_t>);
GRAFT_JSON_GETTERS(std::vector<double>);
GRAFT_JSON_GETTERS(std::vector<std::string>);
#undef GRAFT_JSON_GETTERS

std::optional<JsonObject> JsonObject::optional_object(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  std::string prefix = prefix_.empty() ? std::string(key) : fmt::format("{}.{}", prefix_, key);
  return JsonObject(*find(key), file_, std::move(prefix));
}

JsonObject JsonObject::required_object(std::string_view key) const {
  std::optional<JsonObject> object = optional_object(key);
  if (!object) fail(key, find(key) == nullptr ? "is missing" : "must not be null");
  return *std::move(object);
}

}  // namespace graft
