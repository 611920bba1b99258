// graft tokenize: what a model reads, token by token, of a text or a conversation.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/conversation_file.h"
#include "text/assistant_mask.h"
#include "text/text_model.h"

namespace graft {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string model, text, messages, chat_template, variables, date;
  bool has_text = false;
  bool add_special_tokens = false;
  bool add_generation_prompt = false;
  bool json = false;
};

MaskedConversation tokenize_text(const TextModel& model, const Options& options) {
  MaskedConversation result;
  result.text = options.text;
  result.ids = model.tokenizer.encode(options.text, options.add_special_tokens);
  result.trained.assign(result.ids.size(), 0);
  return result;
}

MaskedConversation tokenize_messages(const TextModel& model, const Options& options) {
  const Conversation conversation = read_conversation(options.messages);
  const TemplateSettings settings{.date = options.date, .variables = options.variables};
  const AssistantMasker masker(model.tokenizer, model.template_for(conversation));
  try {
    return masker.mask(conversation, settings, options.add_generation_prompt);
  } catch (const Error& e) {
    throw e.at(options.messages);
  }
}

// One token a line: its id, whether it is trained, and its text as JSON.
void print_for_people(const TextModel& model, const MaskedConversation& result) {
  for (size_t i = 0; i < result.ids.size(); ++i) {
    const std::string token = model.tokenizer.decode({&result.ids[i], 1}, false);
    const std::string quoted =
        ordered_json(token).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    print_text(fmt::format("{:>8} {} {}\n", result.ids[i], result.trained[i] ? '*' : ' ', quoted));
  }
}

void tokenize(const Options& options) {
  const TextModel model = load_text_model(options.model, options.chat_template);
  const MaskedConversation result =
      options.has_text ? tokenize_text(model, options) : tokenize_messages(model, options);
  for (const std::string& warning : result.warnings) log_warning(warning);
  if (!options.json) {
    print_for_people(model, result);
    return;
  }
  print_json(
      {{"text", result.text}, {"input_ids", result.ids}, {"assistant_mask", result.trained}});
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "tokenize", "Show the tokens of a text or a conversation, and which of them are trained");
  command->add_option("--model", options->model, "Model folder, tokenizer folder or .gguf file")
      ->required()
      ->check(not_empty());
  CLI::Option* text =
      command->add_option("--text", options->text, "The text to tokenize")->check(utf8_text());
  CLI::Option* messages = command
                              ->add_option("--messages", options->messages,
                                           "JSON file with {\"messages\": [...], \"tools\": [...]}")
                              ->check(not_empty());
  text->excludes(messages);
  command
      ->add_flag("--add-special-tokens", options->add_special_tokens,
                 "With --text: add what the tokenizer puts around a text")
      ->needs(text);
  command
      ->add_flag("--add-generation-prompt", options->add_generation_prompt,
                 "End with the header of a reply")
      ->needs(messages);
  command->add_option("--chat-template", options->chat_template, "Template file to use instead")
      ->check(not_empty())
      ->needs(messages);
  command
      ->add_option("--template-variables", options->variables,
                   "JSON object of further template variables")
      ->check(json_object())
      ->needs(messages);
  command->add_option("--date", options->date, "The day that templates see, YYYY-MM-DD")
      ->check(calendar_date());
  command->add_flag("--json", options->json, "Print one JSON value");
  command->callback([options, text, messages] {
    options->has_text = text->count() > 0;
    if (!options->has_text && messages->count() == 0) {
      throw CLI::ValidationError("tokenize", "give --text or --messages");
    }
    tokenize(*options);
  });
}

}  // namespace graft
