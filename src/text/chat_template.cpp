#include "text/chat_template.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>

#include "base/error.h"
#include "text/conversation_renderer.h"
#include "text/rust_api.h"
#include "text/rust_call.h"

namespace graft {

ChatTemplate ChatTemplate::compile(std::string_view source, const std::string& where,
                                   std::map<std::string, std::string> special_tokens) {
  RustBytes error;
  graft_template* handle = nullptr;
  bool has_generation = false;
  rust_call(
      graft_template_create(source.data(), source.size(), &handle, &has_generation, error.get()),
      error, where, "give another template with data.chat_template or --chat-template");
  ChatTemplate compiled;
  compiled.handle_ = std::shared_ptr<const graft_template>(
      handle, [](const graft_template* t) { graft_template_free(const_cast<graft_template*>(t)); });
  compiled.source_ = std::make_shared<const std::string>(source);
  compiled.where_ = where;
  compiled.special_tokens_ = std::move(special_tokens);
  compiled.has_generation_marks_ = has_generation;
  return compiled;
}

Rendered ChatTemplate::render(const Conversation& conversation, const TemplateSettings& settings,
                              bool add_generation_prompt, NullKeys null_keys) const {
  return ConversationRenderer(*this, conversation, settings, add_generation_prompt, null_keys)
      .plain();
}

Rendered ChatTemplate::render_variables(std::string_view variables, const std::string& date) const {
  RustBytes error;
  graft_rendering raw{};
  rust_call(graft_template_render(handle_.get(), variables.data(), variables.size(), date.data(),
                                  date.size(), &raw, error.get()),
            error, where_);
  const std::unique_ptr<graft_rendering, void (*)(graft_rendering*)> owner(
      &raw, [](graft_rendering* r) { graft_rendering_free(*r); });
  Rendered rendered;
  rendered.text.assign(raw.text.data, raw.text.size);
  for (size_t i = 0; i < raw.range_count; ++i) {
    rendered.generation.push_back({raw.ranges[2 * i], raw.ranges[2 * i + 1]});
  }
  return rendered;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:04}-{:02}-{:02}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday);
}

void check_date(const std::string& date) {
  std::tm parsed{};
  const char* end = strptime(date.c_str(), "%Y-%m-%d", &parsed);
  std::tm normal = parsed;
  normal.tm_hour = 12;
  if (date.size() != 10 || end != date.c_str() + 10 || timegm(&normal) == -1 ||
      normal.tm_mday != parsed.tm_mday || normal.tm_mon != parsed.tm_mon) {
    throw Error(fmt::format("\"{}\" is not a date of the form YYYY-MM-DD", date));
  }
}

}  // namespace graft
