#pragma once
// JSON files that come from elsewhere: strict parsing, and getters that name the file and the key.
//
// Parsing refuses what nlohmann-json would let pass: a key given twice in one object, nesting
// beyond a limit, invalid UTF-8. JsonObject is a view of one object of a parsed document; it knows
// where it came from, so that every error can say so:
//
//   const nlohmann::json document = read_json_file("model/config.json");
//   const JsonObject config(document, "model/config.json");
//   const int64_t hidden = config.required<int64_t>("hidden_size");
//   const double eps = config.optional<double>("rms_norm_eps").value_or(1e-6);
//   if (auto rope = config.optional_object("rope_parameters"))
//   rope->required<double>("rope_theta");
//     // "model/config.json: rope_parameters.rope_theta: is missing"

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace graft {

inline constexpr int kJsonDepthLimit = 64;  // objects and arrays inside each other

// Parses one value; `name` (a file) and line:column are in the errors.
nlohmann::json parse_json(std::string_view text, const std::string& name);
nlohmann::json read_json_file(const std::filesystem::path& path);

class JsonObject {
 public:
  // `document` must outlive the view; raises Error unless it is an object. `prefix` is the dotted
  // path of keys that led here.
  JsonObject(const nlohmann::json& document, std::string file, std::string prefix = "");

  bool has(std::string_view key) const;  // present and not null
  std::vector<std::string> keys() const;
  const nlohmann::json* find(std::string_view key) const;  // nullptr if absent; may be null
  const nlohmann::json& value() const { return *object_; }

  // T: bool, int64_t, double (whole numbers too), std::string, and vectors of the last three. A
  // whole number written as 4.0 is an int64_t too. A value of another kind raises Error; null
  // counts as absent.
  template <typename T>
  T required(std::string_view key) const;
  template <typename T>
  std::optional<T> optional(std::string_view key) const;

  JsonObject required_object(std::string_view key) const;
  std::optional<JsonObject> optional_object(std::string_view key) const;

  // "config.json: rope_parameters.factor"
  std::string where(std::string_view key) const;
  [[noreturn]] void fail(std::string_view key, const std::string& problem,
                         const std::string& remedy = "") const;

 private:
  const nlohmann::json* object_;
  std::string file_, prefix_;
};

}  // namespace graft
