// graft merge --model M --adapter A --output DIR

#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "train/model_folder.h"

namespace graft {
namespace {

void merge(const std::string& model, const std::string& adapter, const std::string& output) {
  const auto refuse_to_write_into = [&](const std::string& source, std::string_view what) {
    std::error_code error;
    if (!std::filesystem::equivalent(source, output, error)) return;
    throw Error(fmt::format("the output is the {}'s own folder", what), output,
                "choose another folder");
  };
  refuse_to_write_into(model, "base model");
  refuse_to_write_into(adapter, "adapter");
  ModelState state = load_model_state(model, DType::kF32);
  attach_adapter_folder(state, adapter);
  std::optional<TextModel> text;
  if (is_gguf(model)) text = load_text_model(model);
  save_model_folder(output, state, text ? &*text : nullptr,
                    [&](const std::string& name) { return merged_parameter(state, name); });
  info("merged {} adapters into {}", state.adapter.sites.size(), output);
}

}  // namespace

void add_merge_command(CLI::App& app) {
  struct Options {
    std::string model, adapter, output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("merge", "Fold an adapter into its base model");
  command->add_option("--model", options->model, "A Hugging Face folder, or a .gguf file")
      ->required()
      ->check(not_empty());
  command->add_option("--adapter", options->adapter, "A PEFT adapter folder")
      ->required()
      ->check(not_empty());
  command->add_option("--output", options->output, "The Hugging Face folder to write")
      ->required()
      ->check(not_empty());
  command->callback([options] { merge(options->model, options->adapter, options->output); });
}

}  // namespace graft
