#pragma once
// The table behind recipe.h: one row an option, and the names of other programs that graft refuses.

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/recipe.h"
#include "train/yaml_document.h"

namespace graft {

struct RecipeKey {
  std::string_view name;  // "lora.r"
  std::string type;       // what it may be: "whole number >= 1"
  std::string default_text;
  std::string_view help;
  // Sets the option; raises Error at the node's place. A null node puts the default back.
  std::function<void(Recipe&, const YamlNode&)> read;
  std::function<std::string(const Recipe&)> write;  // as YAML, on one line
};

// In the order in which a recipe is written.
const std::vector<RecipeKey>& recipe_keys();
const RecipeKey* find_recipe_key(std::string_view name);

// A key that PEFT, TRL or transformers know. It is accepted only with a value that changes nothing.
struct ForeignKey {
  std::string_view name;
  std::initializer_list<std::string_view> neutral;  // besides null, [] and {}
  std::string_view advice;
};
const ForeignKey* find_foreign_key(std::string_view name);
bool is_neutral(const ForeignKey& key, const YamlNode& node);

// The known key that is nearest in spelling, and whether it is near enough to be what was meant.
struct NearestKey {
  std::string name;
  bool alike = false;
};
NearestKey nearest_recipe_key(std::string_view name);

}  // namespace graft
