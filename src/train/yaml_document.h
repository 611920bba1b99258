#pragma once
// YAML files that people write, read strictly, with the line of everything.
//
// parse_yaml gives a tree in which every node knows its line. It refuses what a recipe has no use
// for or what would be understood in two ways: a key given twice, several documents, merge keys,
// tags of other types, files beyond 256 KiB, nesting beyond 32, and more than 20,000 nodes after
// aliases are expanded.
//
//   const YamlNode root = parse_yaml("lora:\n  r: 8\n", "recipe.yaml");
//   root.find("lora")->find("r")->as_integer();   // 8, or Error "recipe.yaml:2: ..."

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace graft {

struct YamlMember;

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMap };

  Kind kind = Kind::kNull;
  bool quoted = false;  // a scalar in quotes (or tagged !!str) is a string whatever it looks like
  std::string text;     // of a scalar
  std::vector<YamlNode> elements;
  std::vector<YamlMember> members;  // in the order of the file
  std::string where;                // "recipe.yaml:12"

  bool is_null() const;
  const YamlNode* find(std::string_view key) const;  // of a map; nullptr if it has no such key

  // The value as a type; Error (at `where`) if it is of another. Numbers are those of YAML 1.2's
  // core schema, and finite; booleans are true and false alone.
  bool as_boolean() const;
  int64_t as_integer() const;
  double as_number() const;
  std::string as_string() const;  // as written; "" only where it is quoted

  // "a list", "the text \"x\"", "nothing": what the node is, for messages.
  std::string describe() const;
};

struct YamlMember {
  std::string key;
  YamlNode value;
};

// Raises Error naming `name`:line. An empty text is a null node.
YamlNode parse_yaml(std::string_view text, const std::string& name);
// The text of one value, as of a command-line override; `where` is given to every node.
YamlNode parse_yaml_value(std::string_view text, const std::string& where);

// Plain scalars become numbers, booleans and null as the core schema says.
nlohmann::json yaml_to_json(const YamlNode& node);

// A string as a YAML scalar that reads back as that string: plain where that is unmistakable.
std::string quote_yaml(std::string_view text);

}  // namespace graft
