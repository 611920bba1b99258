#include "text/dropped_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace graft {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kThinkBegin = "<think>";

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// Texts of a message's content: itself, or its text parts.
std::vector<std::string> texts_of(const ordered_json& message) {
  const auto content = message.find("content");
  std::vector<std::string> texts;
  if (content == message.end()) return texts;
  if (content->is_string()) texts.push_back(content->get<std::string>());
  if (content->is_array()) {
    for (const ordered_json& part : *content) {
      if (part.is_object() && part.contains("text") && part["text"].is_string()) {
        texts.push_back(part["text"].get<std::string>());
      }
    }
  }
  return texts;
}

class LossFinder {
 public:
  LossFinder(ConversationRenderer& renderer, const SpecialFinder& special,
             const std::vector<ReplySpan>& spans)
      : renderer_(renderer),
        special_(special),
        spans_(spans),
        text_(renderer.plain().text),
        marker_(choose_marker(text_)) {}

  std::vector<std::string> run(bool has_tools) {
    if (has_tools && renderer_.without_tools() == std::optional<std::string>(text_)) {
      warnings_.push_back("the chat template leaves out the tools");
    }
    for (size_t i = 0; i < renderer_.size(); ++i) check_message(i);
    return std::move(warnings_);
  }

 private:
  void warn(size_t index, const std::string& what) {
    const std::string role = renderer_.messages()[index]["role"].get<std::string>();
    warnings_.push_back(fmt::format("message {} ({}): {}", index + 1, role, what));
  }

  bool leaves_no_trace(size_t index, Replace what) {
    const ordered_json changed = with_marker(renderer_.messages()[index], marker_, what);
    if (changed == renderer_.messages()[index]) return false;
    return renderer_.replaced(index, changed) == std::optional<std::string>(text_);
  }

  bool is_shown(std::string_view part, std::string_view where) const {
    part = trim(part);
    if (part.empty() || where.find(part) != std::string_view::npos) return true;
    std::string escaped = ordered_json(part).dump();  // some templates print content as JSON
    return where.find(std::string_view(escaped).substr(1, escaped.size() - 2)) !=
           std::string_view::npos;
  }

  void check_message(size_t index) {
    const ordered_json& message = renderer_.messages()[index];
    const std::string role = message["role"].get<std::string>();
    const auto span = std::find_if(spans_.begin(), spans_.end(),
                                   [&](const ReplySpan& s) { return s.message == index; });
    std::string_view where = text_;
    if (span != spans_.end()) {
      where = where.substr(span->bytes.begin, span->bytes.end - span->bytes.begin);
      if (!span->ends_turn) warn(index, "the chat template writes no end-of-turn token after it");
    }
    const bool is_common = role == "user" || role == "assistant" || role == "system";
    const bool is_dropped = role == "assistant"
                                ? span == spans_.end()
                                : !is_common && leaves_no_trace(index, Replace::kContent);
    if (is_dropped) {
      warn(index, "the chat template leaves out the whole message");
    } else {
      check_content(index, where);
    }
    const auto calls = message.find("tool_calls");
    if (calls != message.end() && calls->is_array() && !calls->empty() &&
        leaves_no_trace(index, Replace::kToolCalls)) {
      warn(index, "the chat template leaves out its tool calls");
    }
    if (role == "assistant" && !is_dropped && leaves_no_trace(index, Replace::kThinking)) {
      warn(index, "the chat template leaves out its thinking");
    }
    check_special_tokens(index);
  }

  void check_content(size_t index, std::string_view where) {
    for (const std::string& text : texts_of(renderer_.messages()[index])) {
      if (is_shown(text, where)) continue;
      const size_t end = text.rfind(kThinkEnd);
      if (end == std::string::npos) {
        warn(index, "the chat template does not show its content as it is");
        continue;
      }
      std::string_view thinking = trim(std::string_view(text).substr(0, end));
      if (thinking.starts_with(kThinkBegin)) thinking.remove_prefix(kThinkBegin.size());
      if (!is_shown(std::string_view(text).substr(end + kThinkEnd.size()), where)) {
        warn(index, "the chat template does not show its content as it is");
      } else if (!is_shown(thinking, where)) {
        warn(index, "the chat template leaves out its thinking");
      }
    }
  }

  void check_special_tokens(size_t index) {
    for (const std::string& text : texts_of(renderer_.messages()[index])) {
      const std::optional<ByteRange> hit = special_.find(text, 0, text.size());
      if (!hit) continue;
      warn(index,
           fmt::format("its text holds the special token {}, which the model will read as one",
                       text.substr(hit->begin, hit->end - hit->begin)));
    }
  }

  ConversationRenderer& renderer_;
  const SpecialFinder& special_;
  const std::vector<ReplySpan>& spans_;
  const std::string& text_;
  std::string marker_;
  std::vector<std::string> warnings_;
};

}  // namespace

std::vector<std::string> find_losses(ConversationRenderer& renderer, const SpecialFinder& finder,
                                     const std::vector<ReplySpan>& spans, bool has_tools) {
  return LossFinder(renderer, finder, spans).run(has_tools);
}

}  // namespace graft
