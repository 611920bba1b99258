#include "cli/common.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/utf8.h"
#include "text/chat_template.h"

namespace graft {

void add_compute_options(CLI::App& command, const std::shared_ptr<ComputeOptions>& options) {
  const auto add = [&](const std::string& name, const std::string& help) {
    // The recipe's own reader decides, so that a value means the same in both places.
    const auto set = [options, name](const std::string& value) {
      try {
        const std::string setting = fmt::format("compute.{}={}", name, value);
        const Recipe recipe = parse_recipe("", "", std::span(&setting, 1));
        if (name == "dtype") options->dtype = recipe.compute.dtype;
        if (name == "threads") options->threads = recipe.compute.threads;
        if (name == "executor") options->executor = recipe.compute.executor;
      } catch (const Error& e) {
        throw CLI::ValidationError("--" + name, e.problem());
      }
    };
    command.add_option_function<std::string>("--" + name, set, help);
  };
  add("dtype", "auto, f32 or bf16: the type of the products (default auto)");
  add("threads", "threads to use; 0: every core (default)");
  add("executor", "native (default), pjrt:cpu, pjrt:cuda, pjrt:tpu or pjrt:PATH of a plugin");
}

namespace {

// `wanted` says what a value has to be; the value itself is quoted as far as it is short.
CLI::Validator validator(std::string wanted, std::function<bool(const std::string&)> holds) {
  return CLI::Validator(
      [wanted = std::move(wanted), holds = std::move(holds)](std::string& value) {
        if (holds(value)) return std::string();
        return fmt::format("expected {}, not \"{}\"", wanted, utf8_prefix(value, 60));
      },
      "");
}

template <typename T>
bool parse_between(const std::string& text, T least, T most) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= least &&
         value <= most;
}

}  // namespace

CLI::Validator not_empty() {
  return validator("a name", [](const std::string& value) { return !value.empty(); });
}

CLI::Validator whole_number(uint64_t least, uint64_t most) {
  return validator(
      fmt::format("a whole number from {} to {}", least, most),
      [least, most](const std::string& value) { return parse_between(value, least, most); });
}

CLI::Validator number_between(double least, double most) {
  return validator(
      fmt::format("a number from {} to {}", least, most),
      [least, most](const std::string& value) { return parse_between(value, least, most); });
}

CLI::Validator calendar_date() {
  return validator("a date, YYYY-MM-DD", [](const std::string& value) {
    try {
      check_date(value);
      return true;
    } catch (const Error&) {
      return false;
    }
  });
}

CLI::Validator json_object() {
  return validator("a JSON object", [](const std::string& value) {
    return nlohmann::json::parse(value, nullptr, false).is_object();
  });
}

CLI::Validator utf8_text() {
  return CLI::Validator(
      [](std::string& value) {
        const bool valid = find_invalid_utf8(value) == std::string_view::npos;
        return std::string(valid ? "" : "the text is not valid UTF-8");
      },
      "");
}

}  // namespace graft
