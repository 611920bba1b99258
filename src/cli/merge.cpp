// graft merge --model M --adapter A --output DIR

#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "cli/commands.h"
#include "train/model_folder.h"

namespace graft {
namespace {

void merge(const std::string& model, const std::string& adapter, const std::string& output) {
  std::error_code error;
  if (std::filesystem::equivalent(model, output, error)) {
    throw Error("the output is the base model's own folder", output, "choose another folder");
  }
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
      ->required();
  command->add_option("--adapter", options->adapter, "A PEFT adapter folder")->required();
  command->add_option("--output", options->output, "The Hugging Face folder to write")->required();
  command->callback([options] { merge(options->model, options->adapter, options->output); });
}

}  // namespace graft
