// graft eval --model M [--adapter A] --data FILE [--json]

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/model_options.h"
#include "data/dataset.h"
#include "train/runner.h"

namespace graft {
namespace {

struct Options {
  ModelOptions model;
  DataOptions data;
  std::string format = "auto", train_on = "auto", on_too_long = "drop";
  int64_t batch_size = 4;
  bool json = false;
};

// A word that `from_name` knows; its own message says which those are.
template <auto from_name>
CLI::Validator one_of() {
  return CLI::Validator(
      [](std::string& value) {
        try {
          from_name(value);
          return std::string();
        } catch (const Error& e) {
          return fmt::format("{}; {}", e.problem(), e.remedy());
        }
      },
      "");
}

void evaluate(Options& options) {
  options.data.format = data_format_from_name(options.format);
  options.data.train_on = train_on_from_name(options.train_on);
  options.data.on_too_long = on_too_long_from_name(options.on_too_long);
  validate(options.data);
  LoadedModel model = load_model(options.model);
  std::optional<TextModel> text;
  if (has_tokenizer(options.model.model) || !options.data.chat_template.empty()) {
    text = load_text_model(options.model.model, options.data.chat_template);
  }
  const Dataset data = load_dataset(options.data.train, text ? &*text : nullptr, options.data,
                                    model.compute.threads);
  for (const std::string& warning : data.warnings) warn("{}", warning);
  if (data.largest_id >= model.state.config.vocab_size) {
    throw Error(fmt::format("token id {} is beyond the embedding's {} rows", data.largest_id,
                            model.state.config.vocab_size),
                fmt::format("{}:{}", data.name, data.largest_id_line),
                "use the model's own tokenizer");
  }

  StepOptions step;
  step.config = &model.state.config;
  step.dtype = model.compute.dtype;
  step.lora = model.state.adapter.sites;
  step.parameters = model.state.parameters;
  step.packed = model.state.packed;
  step.adapters = model.state.adapter.variables;
  StepRunner runner(step, model.state.tensors, make_executor(model.compute));
  const EvaluationBatches batches(data.examples, options.batch_size);
  EvaluationResult result;
  for (int64_t i = 0; i < batches.size(); ++i) runner.evaluate(batches.get(i), result);
  if (!std::isfinite(result.loss())) {
    throw Error(fmt::format("the loss over {} is not finite", data.name), options.model.model,
                describe_not_finite(model.state));
  }
  if (options.json) {
    print_json({{"loss", result.loss()},
                {"perplexity", std::exp(result.loss())},
                {"tokens", result.tokens},
                {"trained_tokens", result.trained_tokens},
                {"examples", data.trained_examples}});
    return;
  }
  print_text(fmt::format(
      "loss {:.6f} nats a token, perplexity {:.4f}; {} trained tokens of {} in {} examples\n",
      result.loss(), std::exp(result.loss()), result.trained_tokens, result.tokens,
      data.trained_examples));
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("eval", "Measure the loss of a model on a data file");
  add_model_options(*command, options->model);
  command->add_option("--data", options->data.train, "JSONL, JSON, CSV or Parquet, as for training")
      ->required()
      ->check(not_empty());
  command->add_option("--format", options->format, "As data.format of a recipe")
      ->check(one_of<data_format_from_name>())
      ->capture_default_str();
  command->add_option("--train-on", options->train_on, "As data.train_on of a recipe")
      ->check(one_of<train_on_from_name>())
      ->capture_default_str();
  command->add_option("--max-length", options->data.max_length, "Tokens of a row")
      ->check(whole_number(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--on-too-long", options->on_too_long, "drop, truncate or error")
      ->check(one_of<on_too_long_from_name>())
      ->capture_default_str();
  command
      ->add_option("--chat-template", options->data.chat_template,
                   "A Jinja file instead of the model's own")
      ->check(not_empty());
  command->add_option("--template-variables", options->data.template_variables, "A JSON object")
      ->check(json_object());
  command->add_option("--date", options->data.template_date, "YYYY-MM-DD that templates see")
      ->check(calendar_date());
  command->add_option("--batch-size", options->batch_size, "Rows at a time")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object on stdout");
  command->callback([options] { evaluate(*options); });
}

}  // namespace graft
