#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "text/reply_spans.h"

namespace graft {
namespace {

using nlohmann::ordered_json;

// Message keys whose texts are labels, not content: a template may look them up or check them.
bool is_label(const std::string& key) {
  return key == "role" || key == "name" || key == "id" || key == "tool_call_id" || key == "type";
}

void replace_content(ordered_json& content, const std::string& marker) {
  if (content.is_string()) {
    content = marker;
  } else if (content.is_array()) {
    for (ordered_json& part : content) {
      if (part.is_object() && part.contains("text") && part["text"].is_string())
        part["text"] = marker;
    }
  }
}

void replace_call(ordered_json& call, const std::string& marker, bool with_name) {
  if (!call.is_object()) return;
  ordered_json& body = call.contains("function") ? call["function"] : call;
  if (!body.is_object()) return;
  if (with_name && body.contains("name") && body["name"].is_string()) body["name"] = marker;
  const auto arguments = body.find("arguments");
  if (arguments == body.end()) return;
  const ordered_json replacement = {{marker, marker}};
  *arguments = arguments->is_string() ? ordered_json(replacement.dump()) : replacement;
}

}  // namespace

std::string choose_marker(std::string_view text) {
  // Noncharacters, which no text should hold; where one does, the number between them grows.
  for (int number = 0;; ++number) {
    std::string marker = fmt::format("\uFDD2{}\uFDD3", number);
    if (text.find(marker) == std::string_view::npos) return marker;
  }
}

ordered_json with_marker(const ordered_json& message, const std::string& marker, Replace what) {
  ordered_json changed = message;
  if (what == Replace::kAbsentContent) {
    changed["content"] = marker;
    return changed;
  }
  const bool everything = what == Replace::kEverything;
  for (auto& [key, value] : changed.items()) {
    if (key == "content") {
      if (everything || what == Replace::kContent) replace_content(value, marker);
    } else if (key == "tool_calls") {
      if (!value.is_array() || what == Replace::kContent || what == Replace::kThinking) continue;
      const bool with_name = everything || what == Replace::kToolCalls;
      for (ordered_json& call : value) replace_call(call, marker, with_name);
    } else if (value.is_string() && !is_label(key)) {
      if (everything || what == Replace::kThinking) value = marker;
    }
  }
  return changed;
}

}  // namespace graft
