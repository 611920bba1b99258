// graft merge --model M [--adapter A] --output DIR [--format hf|gguf] [--dtype T]

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/common.h"
#include "train/export.h"

namespace graft {
namespace {

struct Options {
  std::string model, adapter, output, format = "hf", dtype;
};

void merge(const Options& options) {
  const auto refuse_to_write_into = [&](const std::string& source, std::string_view what) {
    std::error_code error;
    if (!std::filesystem::equivalent(source, options.output, error)) return;
    throw Error(fmt::format("the output is the {}'s own folder", what), options.output,
                "choose another folder");
  };
  refuse_to_write_into(options.model, "base model");
  refuse_to_write_into(options.adapter, "adapter");
  ExportSource source;
  source.model = options.model;
  source.adapter = options.adapter;
  source.compute = choose_compute({}, options.model);
  ExportOptions e;
  e.format = *find_export_format(options.format);
  if (!options.dtype.empty()) e.dtype = dtype_from_name(options.dtype);
  e.output = options.output;
  export_model(source, e);
}

}  // namespace

void add_merge_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("merge", "Fold an adapter into its base model");
  command->add_option("--model", options->model, "A Hugging Face folder, or a .gguf file")
      ->required()
      ->check(not_empty());
  command
      ->add_option("--adapter", options->adapter,
                   "A PEFT adapter folder, or a .gguf adapter; without one the model is converted")
      ->check(not_empty());
  command->add_option("--output", options->output, "The folder to write")
      ->required()
      ->check(not_empty());
  command->add_option("--format", options->format, "hf (default), or gguf: a file model.gguf in it")
      ->check(CLI::IsMember({"hf", "gguf"}));
  command
      ->add_option("--dtype", options->dtype,
                   "Type of the weights (default: as stored, f32 for a .gguf)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  command->callback([options] { merge(*options); });
}

}  // namespace graft
