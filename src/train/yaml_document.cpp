#include "train/yaml_document.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "data/utf8.h"

namespace graft {
namespace {

constexpr size_t kFileLimit = 256 * 1024;
constexpr size_t kDepthLimit = 32;
constexpr size_t kNodeLimit = 20000;

size_t count_nodes(const YamlNode& node) {
  size_t count = 1;
  for (const YamlNode& element : node.elements) count += count_nodes(element);
  for (const auto& [key, value] : node.members) count += count_nodes(value);
  return count;
}

// Builds the tree from yaml-cpp's events. yaml-cpp's own nodes keep neither duplicate keys nor
// limits.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string name, std::string fixed_where)
      : name_(std::move(name)), fixed_where_(std::move(fixed_where)) {}

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node;
    node.where = where(mark);
    finish(std::move(node), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      throw Error("an alias stands inside the value that it names", where(mark));
    }
    add_count(count_nodes(found->second), where(mark));
    place(found->second);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.where = where(mark);
    node.quoted = tag == "!" || tag == "tag:yaml.org,2002:str";
    if (!node.quoted && !tag.empty() && tag != "?") refuse_tag(tag, node.where);
    // Escapes in quotes can spell bytes that are no text.
    if (find_invalid_utf8(value) != std::string_view::npos ||
        value.find('\0') != std::string::npos) {
      throw Error("the text holds a character that is not valid", node.where);
    }
    node.text = value;
    finish(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kSequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor;
    bool has_key = false;
    std::string key;
  };

  std::string where(const YAML::Mark& mark) const {
    return fixed_where_.empty() ? fmt::format("{}:{}", name_, mark.line + 1) : fixed_where_;
  }

  [[noreturn]] static void refuse_tag(const std::string& tag, const std::string& where) {
    throw Error(fmt::format("the tag {} is not supported", tag), where, "write a plain value");
  }

  void add_count(size_t nodes, const std::string& where) {
    count_ += nodes;
    if (count_ > kNodeLimit) {
      throw Error(fmt::format("the file holds more than {} values", kNodeLimit), where);
    }
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    YamlNode node;
    node.kind = kind;
    node.where = where(mark);
    if (!tag.empty() && tag != "?") refuse_tag(tag, node.where);
    if (open_.size() >= kDepthLimit) {
      throw Error(fmt::format("values are nested more than {} deep", kDepthLimit), node.where);
    }
    open_.push_back({std::move(node), anchor, false, {}});
  }

  void close() {
    GRAFT_CHECK(!open_.empty());
    Open done = std::move(open_.back());
    open_.pop_back();
    finish(std::move(done.node), done.anchor);
  }

  void finish(YamlNode node, YAML::anchor_t anchor) {
    add_count(1, node.where);
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    place(std::move(node));
  }

  void place(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::kSequence) {
      parent.node.elements.push_back(std::move(node));
    } else if (!parent.has_key) {
      if (node.kind != YamlNode::Kind::kScalar) {
        throw Error("a key must be a plain word", node.where);
      }
      if (node.text == "<<" && !node.quoted) {
        throw Error("merge keys (<<) are not supported", node.where, "write the keys out");
      }
      if (parent.node.find(node.text) != nullptr) {
        throw Error(fmt::format("the key {} is given twice", node.text), node.where,
                    "remove one of them");
      }
      parent.has_key = true;
      parent.key = std::move(node.text);
    } else {
      parent.has_key = false;
      parent.node.members.push_back({std::move(parent.key), std::move(node)});
      parent.key.clear();
    }
  }

  std::string name_, fixed_where_;
  YamlNode root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  size_t count_ = 0;
};

YamlNode parse(std::string_view text, const std::string& name, const std::string& fixed_where) {
  const std::string& place = fixed_where.empty() ? name : fixed_where;
  if (text.size() > kFileLimit) {
    throw Error(fmt::format("the file is larger than {} KiB", kFileLimit / 1024), place);
  }
  if (text.find('\0') != std::string_view::npos) throw Error("the text holds a zero byte", place);
  if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') + 1;
    throw Error("the text is not valid UTF-8",
                fixed_where.empty() ? fmt::format("{}:{}", name, line) : place);
  }
  TreeBuilder builder(name, fixed_where);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    TreeBuilder rest(name, fixed_where);
    if (parser.HandleNextDocument(rest)) throw Error("there is a second YAML document", place);
  } catch (const YAML::Exception& e) {
    const bool marked = !e.mark.is_null() && fixed_where.empty();
    throw Error("not valid YAML: " + e.msg,
                marked ? fmt::format("{}:{}:{}", name, e.mark.line + 1, e.mark.column + 1) : place);
  }
  return builder.take();
}

bool is_null_word(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

// Whole numbers and decimals of YAML 1.2's core schema.
bool parse_integer(std::string_view text, int64_t& value) {
  int base = 10;
  if (text.starts_with("+")) text.remove_prefix(1);
  if (text.starts_with("0x")) base = 16;
  if (text.starts_with("0o")) base = 8;
  if (base != 10) text.remove_prefix(2);
  if (text.empty() || text[0] == '+' || (base != 10 && text[0] == '-')) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_number(std::string_view text, double& value) {
  if (text.starts_with("+")) text.remove_prefix(1);
  if (text.empty() || text[0] == '+') return false;
  // from_chars also reads "inf" and "nan", which are words here.
  const char first = text[0] == '-' && text.size() > 1 ? text[1] : text[0];
  if (first != '.' && (first < '0' || first > '9')) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

bool is_infinite_word(std::string_view text) {
  if (text.starts_with("-") || text.starts_with("+")) text.remove_prefix(1);
  return text == ".inf" || text == ".Inf" || text == ".INF" || text == ".nan" || text == ".NaN" ||
         text == ".NAN" || text == "inf" || text == "nan" || text == "Infinity" || text == "NaN";
}

bool is_boolean_word(std::string_view text, bool& value) {
  value = text == "true" || text == "True" || text == "TRUE";
  return value || text == "false" || text == "False" || text == "FALSE";
}

}  // namespace

bool YamlNode::is_null() const {
  return kind == Kind::kNull || (kind == Kind::kScalar && !quoted && is_null_word(text));
}

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string YamlNode::describe() const {
  if (is_null()) return "nothing";
  switch (kind) {
    case Kind::kSequence: return elements.empty() ? "an empty list" : "a list";
    case Kind::kMap: return members.empty() ? "an empty mapping" : "a mapping";
    default: break;
  }
  std::string shown = text.substr(0, 60);
  if (shown.size() < text.size()) shown += "...";
  return quoted ? fmt::format("the text \"{}\"", shown) : shown;
}

bool YamlNode::as_boolean() const {
  bool value = false;
  if (kind == Kind::kScalar && !quoted && is_boolean_word(text, value)) return value;
  throw Error(fmt::format("expected true or false, not {}", describe()), where);
}

int64_t YamlNode::as_integer() const {
  int64_t value = 0;
  if (kind == Kind::kScalar && !quoted && parse_integer(text, value)) return value;
  throw Error(fmt::format("expected a whole number, not {}", describe()), where);
}

double YamlNode::as_number() const {
  double value = 0;
  int64_t whole = 0;
  if (kind == Kind::kScalar && !quoted) {
    if (parse_number(text, value)) return value;
    if (parse_integer(text, whole)) return static_cast<double>(whole);
    if (is_infinite_word(text)) throw Error(fmt::format("{} is not a finite number", text), where);
  }
  throw Error(fmt::format("expected a number, not {}", describe()), where);
}

std::string YamlNode::as_string() const {
  if (kind != Kind::kScalar || is_null()) {
    throw Error(fmt::format("expected text, not {}", describe()), where);
  }
  return text;
}

YamlNode parse_yaml(std::string_view text, const std::string& name) {
  return parse(text, name, "");
}

YamlNode parse_yaml_value(std::string_view text, const std::string& where) {
  return parse(text, "", where);
}

nlohmann::json yaml_to_json(const YamlNode& node) {
  if (node.is_null()) return nullptr;
  switch (node.kind) {
    case YamlNode::Kind::kSequence: {
      nlohmann::json list = nlohmann::json::array();
      for (const YamlNode& element : node.elements) list.push_back(yaml_to_json(element));
      return list;
    }
    case YamlNode::Kind::kMap: {
      nlohmann::json object = nlohmann::json::object();
      for (const auto& [key, value] : node.members) object[key] = yaml_to_json(value);
      return object;
    }
    default: break;
  }
  if (!node.quoted) {
    bool truth = false;
    int64_t whole = 0;
    double number = 0;
    if (is_boolean_word(node.text, truth)) return truth;
    if (parse_integer(node.text, whole)) return whole;
    if (parse_number(node.text, number)) return number;
    if (is_infinite_word(node.text)) {
      throw Error(fmt::format("{} is not a finite number", node.text), node.where);
    }
  }
  return node.text;
}

std::string quote_yaml(std::string_view text) {
  bool plain =
      !text.empty() && ((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z') ||
                        text[0] == '/' || (text[0] == '.' && text.size() > 1 && text[1] == '/'));
  for (const char c : text) {
    const bool safe = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '-' || c == '/' || c == '.';
    plain = plain && safe;
  }
  bool truth = false;
  // Words that another reader of YAML may take for something else.
  for (const std::string_view word : {"yes", "no", "on", "off", "y", "n"}) {
    std::string lower;
    for (const char c : text) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    if (lower == word) plain = false;
  }
  if (plain && !is_null_word(text) && !is_boolean_word(text, truth) && !is_infinite_word(text)) {
    return std::string(text);
  }
  // JSON's strings are YAML's double-quoted scalars.
  return nlohmann::json(std::string(text)).dump();
}

}  // namespace graft
