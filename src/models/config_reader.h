#pragma once
// Reading a Hugging Face config.json: values by key, and a record of which keys were looked at, so
// that a field nobody understood is not passed over in silence.

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/json.h"
#include "models/config.h"
#include "models/rope_scaling.h"

namespace graft {

class ConfigReader {
 public:
  explicit ConfigReader(JsonObject object) : object_(std::move(object)) {}

  template <typename T>
  std::optional<T> find(const std::string& key) {
    used_.insert(key);
    return object_.optional<T>(key);
  }
  template <typename T>
  T get(const std::string& key) {
    used_.insert(key);
    return object_.required<T>(key);
  }
  // Of a field that somebody else reads.
  void note_read(const std::string& key) { used_.insert(key); }
  // A size: a positive integer that fits a tensor.
  int64_t extent(const std::string& key);
  std::optional<int64_t> find_extent(const std::string& key);
  // A field that may only have the value graft computes with; anything else is refused by name.
  void require_neutral(const std::string& key, const nlohmann::json& neutral);

  // `rope_parameters`, or in files released earlier `rope_theta` with `rope_scaling`.
  RopeParameters rope(double default_theta);
  // The window of each layer: `layer_types` where given, else `fallback(i)`.
  template <typename F>
  std::vector<int32_t> windows(int64_t layers, std::optional<int64_t> window, F fallback) {
    const auto types = layer_types(layers);
    std::vector<int32_t> result;
    for (int64_t i = 0; i < layers; ++i) {
      const bool sliding = types.empty() ? fallback(i) : types[static_cast<size_t>(i)];
      result.push_back(sliding && window
                           ? static_cast<int32_t>(std::min<int64_t>(*window, kNoWindow))
                           : kNoWindow);
    }
    return result;
  }

  // Names of fields that were set and never looked at.
  std::vector<std::string> unread() const;
  const JsonObject& object() const { return object_; }

 private:
  std::vector<bool> layer_types(int64_t layers);  // true: sliding; empty if not given
  void read_rope_scaling(const JsonObject& scaling, RopeParameters& parameters);

  JsonObject object_;
  std::set<std::string> used_;
};

}  // namespace graft
