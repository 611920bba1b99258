#include "text/reply_spans.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace graft {
namespace {

using nlohmann::ordered_json;

bool is_inside_character(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

// Bytes that two texts have in common from the front, in whole characters.
size_t common_prefix(std::string_view a, std::string_view b) {
  const auto parted = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  size_t n = static_cast<size_t>(parted - a.begin());
  while (n > 0 && is_inside_character(a, n)) --n;
  return n;
}

// Where in `a` its common ending with `b` begins, in whole characters.
size_t common_ending(std::string_view a, std::string_view b) {
  const auto parted = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first;
  size_t at = a.size() - static_cast<size_t>(parted - a.rbegin());
  while (is_inside_character(a, at)) ++at;
  return at;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string_view without_trailing_space(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

// One of two ways to spell the same ending: they may differ in a quote or bracket before it.
bool is_ending_of_other(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a == b;
  return a.ends_with(b) || b.ends_with(a);
}

class Finder {
 public:
  Finder(ConversationRenderer& renderer, const SpecialFinder& special)
      : renderer_(renderer),
        special_(special),
        text_(renderer.plain().text),
        marker_(choose_marker(text_)) {}

  std::optional<ReplySpan> find(size_t index) {
    const std::optional<size_t> parted = parting(index);
    if (!parted) return std::nullopt;
    ReplySpan span;
    span.message = index;
    span.bytes.begin = find_begin(index, *parted);
    find_end(span, *parted);
    return span;
  }

 private:
  const ordered_json& message(size_t index) const { return renderer_.messages()[index]; }
  ordered_json marked(size_t index, Replace what) const {
    return with_marker(message(index), marker_, what);
  }

  // Where the text parts from that with the texts of this message replaced: at the latest where the
  // message's own text begins. Nothing if they are the same, or if no such variant can be rendered.
  std::optional<size_t> parting(size_t index) {
    for (const Replace what : {Replace::kEverything, Replace::kContent, Replace::kAbsentContent}) {
      const std::optional<std::string>& other = renderer_.replaced(index, marked(index, what));
      if (other && *other != text_) return common_prefix(text_, *other);
    }
    return std::nullopt;
  }

  // Where the text of the messages before this one is over, so that nothing a user wrote lies
  // behind.
  size_t end_of_history(size_t index, size_t parted) {
    for (size_t before = index; before-- > 0;) {
      for (const Replace what : {Replace::kContent, Replace::kArguments}) {
        const std::optional<std::string>& other = renderer_.replaced(before, marked(before, what));
        if (!other || *other == text_) continue;
        const size_t end = common_ending(text_, *other);
        if (end <= parted) return end;
      }
    }
    return 0;
  }

  size_t find_begin(size_t index, size_t parted) {
    const std::optional<std::string>& prompted = renderer_.beginning(index, true);
    const std::optional<std::string>& unprompted = renderer_.beginning(index, false);
    if (prompted && prompted->size() <= parted && text_.starts_with(*prompted)) {
      const bool has_prompt = !unprompted || *unprompted != *prompted;
      return has_prompt ? prompted->size() : skip_header(index, prompted->size(), parted);
    }
    // Earlier turns look different before this one than they do now (old thinking is dropped, say):
    // look for the header itself, behind all that the messages before wrote.
    std::string header = header_of(prompted, unprompted);
    if (header.empty()) header = header_of(renderer_.probe(true), renderer_.probe(false));
    const std::string_view region =
        std::string_view(text_).substr(0, parted).substr(end_of_history(index, parted));
    const size_t offset = parted - region.size();
    const size_t at = header.empty() ? std::string_view::npos : region.rfind(header);
    if (at != std::string_view::npos) return offset + at + header.size();
    return parted;
  }

  // What a generation prompt adds. Without one some templates write an end of text instead.
  static std::string header_of(const std::optional<std::string>& prompted,
                               const std::optional<std::string>& unprompted) {
    if (!prompted || !unprompted) return "";
    return prompted->substr(common_prefix(*prompted, *unprompted));
  }

  // The template has no generation prompt of its own here: either it always ends in an open header,
  // and the reply begins at once, or it writes a header with each message. Which, a bare reply
  // shows.
  size_t skip_header(size_t index, size_t begin, size_t parted) {
    const ordered_json bare = {{"role", message(index)["role"]}, {"content", marker_}};
    const std::optional<std::string>& other = renderer_.replaced(index, bare);
    if (!other || !other->starts_with(std::string_view(text_).substr(0, begin))) return begin;
    const size_t at = other->find(marker_, begin);
    if (at == std::string::npos) return begin;
    const std::string header = other->substr(begin, at - begin);
    const bool here = std::string_view(text_).substr(begin).starts_with(header);
    return !is_blank(header) && here && begin + header.size() <= parted ? begin + header.size()
                                                                        : begin;
  }

  // No later than where the next message's own text begins.
  size_t limit_of(size_t index) {
    for (size_t next = index + 1; next < renderer_.size(); ++next) {
      if (const std::optional<size_t> at = parting(next)) return *at;
    }
    return text_.size();
  }

  void find_end(ReplySpan& span, size_t parted) {
    const size_t index = span.message;
    const size_t limit = std::max(limit_of(index), parted);
    size_t content_end = parted;
    Replace used = Replace::kEverything;
    bool found = false;
    for (const Replace what :
         {Replace::kArguments, Replace::kContent, Replace::kThinking, Replace::kAbsentContent}) {
      // A marker in an empty content may change what the template makes of the message.
      if (found && (what != Replace::kContent || !has_content(index))) continue;
      const std::optional<std::string>& other = renderer_.replaced(index, marked(index, what));
      if (!other || *other == text_) continue;
      const size_t end = common_ending(text_, *other);
      if (end < parted || end > limit || (found && end <= content_end)) continue;
      content_end = end;
      used = what;
      found = true;
    }
    close_turn(span, content_end, limit, tail_after(index, used));
  }

  bool has_content(size_t index) const {
    const auto content = message(index).find("content");
    return content != message(index).end() && !content->empty() && *content != "";
  }

  // What the template writes after this message if it is the last one.
  std::optional<std::string> tail_after(size_t index, Replace what) {
    const std::optional<std::string>& ending = renderer_.ending_with(index, marked(index, what));
    if (!ending) return std::nullopt;
    const size_t at = ending->rfind(marker_);
    if (at == std::string::npos) return std::nullopt;
    return ending->substr(at + marker_.size());
  }

  // The end-of-turn token is the first special token behind the reply, if it is there too when no
  // message follows; otherwise it belongs to the next header.
  void close_turn(ReplySpan& span, size_t content_end, size_t limit,
                  const std::optional<std::string>& tail) {
    const std::optional<ByteRange> here = special_.find(text_, content_end, limit);
    const std::string_view rest = std::string_view(text_).substr(0, limit).substr(content_end);
    span.ends_turn = here.has_value();
    if (here && tail) {
      const std::optional<ByteRange> there = special_.find(*tail, 0, tail->size());
      const std::string_view gap = rest.substr(0, here->begin - content_end);
      span.ends_turn = there &&
                       is_ending_of_other(gap, std::string_view(*tail).substr(0, there->begin)) &&
                       (same_token(*here, *tail, *there) || special_.find(text_, here->end, limit));
    }
    if (span.ends_turn) {
      span.bytes.end = here->end;
      return;
    }
    span.bytes.end = content_end;
    if (!tail) return;
    const std::string_view closing = without_trailing_space(*tail);
    for (size_t skip = 0; skip < std::min<size_t>(closing.size(), 8); ++skip) {
      if (is_inside_character(closing, skip) || !rest.starts_with(closing.substr(skip))) continue;
      span.bytes.end = content_end + closing.size() - skip;
      return;
    }
  }

  bool same_token(ByteRange here, const std::string& tail, ByteRange there) const {
    return std::string_view(text_).substr(here.begin, here.end - here.begin) ==
           std::string_view(tail).substr(there.begin, there.end - there.begin);
  }

  ConversationRenderer& renderer_;
  const SpecialFinder& special_;
  const std::string& text_;
  std::string marker_;
};

}  // namespace

std::vector<ReplySpan> find_reply_spans(ConversationRenderer& renderer,
                                        const SpecialFinder& special) {
  Finder finder(renderer, special);
  std::vector<ReplySpan> spans;
  for (size_t i = 0; i < renderer.size(); ++i) {
    if (renderer.messages()[i]["role"] != "assistant") continue;
    if (const std::optional<ReplySpan> span = finder.find(i)) spans.push_back(*span);
  }
  return spans;
}

}  // namespace graft
