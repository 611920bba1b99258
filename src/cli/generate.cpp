// graft generate and graft chat: text from a model, token by token, with a key/value cache.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/conversation_file.h"
#include "cli/model_options.h"
#include "data/conversation.h"
#include "data/row_json.h"
#include "data/source.h"
#include "data/utf8.h"
#include "text/stream_decoder.h"
#include "text/text_model.h"
#include "train/decoder.h"
#include "train/sampler.h"

namespace graft {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  int64_t max_tokens = 128;
  std::string prompt, messages, chat_template, date, variables;
  std::string system;  // of chat
  std::string data;    // rows whose first question is answered
  int64_t limit = 0;   // of them; 0: all
  bool json = false;
};

// A loaded model that continues token sequences.
class Session {
 public:
  explicit Session(const Options& options)
      : options_(options),
        model_(load_model(options.model)),
        text_(load_text_model(options.model.model, options.chat_template)),
        decoder_(model_.state, model_.compute),
        sampler_(options.sampling) {}

  const TextModel& text() const { return text_; }

  std::vector<int32_t> encode_prompt(const std::string& prompt) const {
    return text_.tokenizer.encode(prompt, true);
  }

  std::vector<int32_t> encode_conversation(const Conversation& conversation) const {
    const Rendered rendered = text_.template_for(conversation)
                                  .render(conversation, {options_.date, options_.variables}, true);
    return text_.tokenizer.encode(rendered.text, false);
  }

  struct Reply {
    std::string text;
    std::vector<int32_t> ids;
    std::string finish_reason;  // "stop" or "length"
  };

  // Continues after `ids` (only what is new is fed when they begin with what was fed before);
  // `show` is given text as it is completed.
  Reply reply(const std::vector<int32_t>& ids,
              const std::function<void(const std::string&)>& show) {
    if (ids.empty()) {
      throw Error("the prompt has no token", "",
                  "give a text, or use a tokenizer that adds a first token");
    }
    check(ids);
    // The last token is always fed: its logits are wanted.
    size_t known = 0;
    while (known < fed_.size() && known + 1 < ids.size() && fed_[known] == ids[known]) ++known;
    decoder_.truncate(static_cast<int64_t>(known));
    fed_.resize(known);
    std::span<const float> logits = feed({ids.begin() + static_cast<int64_t>(known), ids.end()});
    StreamDecoder stream(text_.tokenizer, true);
    Reply reply;
    reply.finish_reason = "length";
    while (static_cast<int64_t>(reply.ids.size()) < options_.max_tokens) {
      const int32_t next = sampler_.next(logits);
      reply.ids.push_back(next);
      const auto& stops = text_.stop_ids;
      if (std::find(stops.begin(), stops.end(), next) != stops.end()) {
        reply.finish_reason = "stop";
        break;
      }
      emit(stream.push(next), reply, show);
      if (static_cast<int64_t>(reply.ids.size()) < options_.max_tokens) logits = feed({next});
    }
    emit(stream.finish(), reply, show);
    return reply;
  }

 private:
  std::span<const float> feed(const std::vector<int32_t>& ids) {
    fed_.insert(fed_.end(), ids.begin(), ids.end());
    return decoder_.feed(ids);
  }

  static void emit(const std::string& piece, Reply& reply,
                   const std::function<void(const std::string&)>& show) {
    if (piece.empty()) return;
    reply.text += piece;
    show(piece);
  }

  void check(const std::vector<int32_t>& ids) const {
    for (int32_t id : ids) {
      if (id < 0 || id >= model_.state.config.vocab_size) {
        throw Error(fmt::format("the prompt has token id {}; the embedding has {} rows", id,
                                model_.state.config.vocab_size),
                    options_.model.model);
      }
    }
  }

  const Options& options_;
  LoadedModel model_;
  TextModel text_;
  Decoder decoder_;
  Sampler sampler_;
  std::vector<int32_t> fed_;
};

void generate(const Options& options, bool has_prompt) {
  Session session(options);
  const auto encode_messages = [&] {
    try {
      return session.encode_conversation(read_conversation(options.messages));
    } catch (const Error& e) {
      throw e.where() == options.messages ? e : e.at(options.messages);
    }
  };
  const std::vector<int32_t> ids =
      has_prompt ? session.encode_prompt(options.prompt) : encode_messages();
  const Session::Reply reply = session.reply(ids, [&](const std::string& piece) {
    if (!options.json) print_text(piece);
  });
  if (options.json) {
    print_json({{"text", reply.text},
                {"input_ids", ids},
                {"output_ids", reply.ids},
                {"finish_reason", reply.finish_reason}});
  } else {
    print_text("\n");
  }
  if (has_prompt && reply.text.empty() && session.text().chat_template) {
    info(
        "the model ended at once: --prompt is continued as it is; to ask through the model's chat "
        "template use --messages FILE, or graft chat");
  }
}

// A data row's question, and the reply that the row itself has.
struct Question {
  std::vector<int32_t> ids;
  std::string asked, expected;
};

Question read_question(const Session& session, const Rows& rows, const Row& row) {
  nlohmann::ordered_json object = parse_row(rows, row);
  const DataFormat format = detect_format(object, rows.where(row));
  NormalRow normal = normalize_row(std::move(object), {.format = format}, rows.where(row));
  if (normal.shape == NormalRow::Shape::kPromptCompletion) {
    return {session.encode_prompt(normal.prompt), normal.prompt, normal.completion};
  }
  if (normal.shape != NormalRow::Shape::kConversation) {
    throw Error("the row has no question", rows.where(row), "use rows of messages or of prompts");
  }
  Question question;
  nlohmann::ordered_json before = nlohmann::ordered_json::array();
  for (nlohmann::ordered_json& message : normal.messages) {
    if (message.at("role") == "assistant") {
      question.expected = message.value("content", "");
      break;
    }
    if (message.at("role") == "user") question.asked = message.value("content", "");
    before.push_back(std::move(message));
  }
  const std::string tools = normal.tools.is_null() ? "" : normal.tools.dump();
  question.ids =
      session.encode_conversation({.messages = before.dump(), .tools = tools, .documents = ""});
  return question;
}

// Answers the first question of each row. The model is loaded once.
void answer_data(const Options& options) {
  const Rows rows = read_rows(options.data);
  Session session(options);
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  for (const Row& row : rows.rows()) {
    if (options.limit > 0 && static_cast<int64_t>(answers.size()) == options.limit) break;
    const Question question = read_question(session, rows, row);
    if (!options.json) print_text(fmt::format("{}\n", question.asked));
    const Session::Reply reply = session.reply(question.ids, [&](const std::string& piece) {
      if (!options.json) print_text(piece);
    });
    if (!options.json) print_text("\n\n");
    answers.push_back({{"line", row.line},
                       {"question", question.asked},
                       {"expected", question.expected},
                       {"text", reply.text},
                       {"input_ids", question.ids},
                       {"output_ids", reply.ids},
                       {"finish_reason", reply.finish_reason}});
  }
  if (options.json) print_json(answers);
}

void chat(const Options& options) {
  Session session(options);
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!options.system.empty())
    messages.push_back({{"role", "system"}, {"content", options.system}});
  info("chat with {}; an empty line or Ctrl-D ends it", options.model.model);
  for (std::string line; print_text("> "), std::getline(std::cin, line) && !line.empty();) {
    if (find_invalid_utf8(line) != std::string_view::npos) {
      throw Error("the line is not valid UTF-8", "stdin");
    }
    messages.push_back({{"role", "user"}, {"content", line}});
    const auto ids =
        session.encode_conversation({.messages = messages.dump(), .tools = "", .documents = ""});
    const Session::Reply reply =
        session.reply(ids, [](const std::string& piece) { print_text(piece); });
    print_text("\n");
    messages.push_back({{"role", "assistant"}, {"content", reply.text}});
  }
}

void add_sampling_options(CLI::App& command, Options& options) {
  add_model_options(command, options.model);
  command.add_option("--max-tokens", options.max_tokens, "Tokens to generate at most")
      ->check(whole_number(1, 1 << 24))
      ->capture_default_str();
  command
      .add_option("--temperature", options.sampling.temperature, "0: always the most likely token")
      ->check(number_between(0, 1e9))
      ->capture_default_str();
  command
      .add_option("--top-p", options.sampling.top_p, "Share of probability that is sampled from")
      ->check(number_between(1e-9, 1))
      ->capture_default_str();
  command.add_option("--seed", options.sampling.seed, "Of the sampling")
      ->check(whole_number(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  command
      .add_option("--chat-template", options.chat_template,
                  "A Jinja file instead of the model's own")
      ->check(not_empty());
  command.add_option("--template-variables", options.variables, "A JSON object for the template")
      ->check(json_object());
  command.add_option("--date", options.date, "YYYY-MM-DD that templates see; default: today")
      ->check(calendar_date());
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Continue a text, or answer a conversation");
  add_sampling_options(*command, *options);
  CLI::Option* prompt =
      command->add_option("--prompt", options->prompt, "A text, continued as it is")
          ->check(utf8_text());
  CLI::Option* messages = command
                              ->add_option("--messages", options->messages,
                                           "A JSON file: {\"messages\": [...], \"tools\": [...]}")
                              ->check(not_empty());
  CLI::Option* data =
      command
          ->add_option("--data", options->data,
                       "A data file: answer the first question of each row (JSON: a list)")
          ->check(not_empty());
  command->add_option("--limit", options->limit, "With --data: only so many rows; 0: all")
      ->needs(data)
      ->check(whole_number(0, 1'000'000'000));
  command->add_flag("--json", options->json, "One JSON object on stdout");
  command->callback([options, prompt, messages, data] {
    if (prompt->count() + messages->count() + data->count() != 1) {
      throw CLI::ValidationError("give one of --prompt, --messages and --data");
    }
    if (data->count() == 1) {
      answer_data(*options);
    } else {
      generate(*options, prompt->count() == 1);
    }
  });
}

void add_chat_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  options->max_tokens = 512;
  CLI::App* command = app.add_subcommand("chat", "Talk with a model, line by line");
  add_sampling_options(*command, *options);
  command->add_option("--system", options->system, "A system message that begins the conversation")
      ->check(utf8_text());
  command->callback([options] { chat(*options); });
}

}  // namespace graft
