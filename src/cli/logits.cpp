// graft logits --model M [--adapter A] --input IN.safetensors --output OUT.safetensors

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "formats/safetensors.h"
#include "train/scorer.h"

namespace graft {
namespace {

struct Options {
  ModelOptions model;
  std::string input, output;
};

// A tensor of integers [B, S] as s32; undefined if the file has none of that name.
Tensor read_tokens(const SafetensorsFile& file, const std::string& name, const Shape& shape,
                   const std::string& path) {
  if (!file.contains(name)) return {};
  const Tensor t = file.tensor(name);
  if (!is_integer(t.dtype())) {
    throw Error(fmt::format("tensor \"{}\" is {}, not integers", name, dtype_name(t.dtype())),
                path);
  }
  if (!shape.empty() && t.shape() != shape) {
    throw Error(fmt::format("tensor \"{}\" has shape {}, input_ids asks for {}", name,
                            to_string(t.shape()), to_string(shape)),
                path);
  }
  return t.as(DType::kS32);
}

ScoreInput read_input(const std::string& path, int64_t vocabulary) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  if (!file.contains("input_ids")) throw Error("tensor \"input_ids\" is missing", path);
  ScoreInput input;
  input.ids = read_tokens(file, "input_ids", {}, path);
  const Shape shape = input.ids.shape();
  if (shape.size() != 2 || input.ids.elements() == 0) {
    throw Error(
        fmt::format("tensor \"input_ids\" has shape {}, not [batch, tokens]", to_string(shape)),
        path);
  }
  for (int32_t id : input.ids.span<int32_t>()) {
    if (id < 0 || id >= vocabulary) {
      throw Error(
          fmt::format("tensor \"input_ids\" holds {}; the embedding has {} rows", id, vocabulary),
          path);
    }
  }
  input.lengths = read_tokens(file, "lengths", {shape[0]}, path);
  input.segments = read_tokens(file, "segment_ids", shape, path);
  input.positions = read_tokens(file, "position_ids", shape, path);
  input.labels = read_tokens(file, "labels", shape, path);
  if (input.labels.defined()) {
    for (int32_t label : input.labels.span<int32_t>()) {
      if (label != kIgnoredLabel && (label < 0 || label >= vocabulary)) {
        throw Error(
            fmt::format("tensor \"labels\" holds {}; the embedding has {} rows", label, vocabulary),
            path, "labels are token ids, or -100");
      }
    }
  }
  return input;
}

void write_logits(const Options& options) {
  const LoadedModel model = load_model(options.model);
  const ScoreInput input = read_input(options.input, model.state.config.vocab_size);
  const Scores scores = score(model.state, model.compute, input);
  std::vector<std::pair<std::string, Tensor>> tensors{{"logits", scores.logits}};
  if (input.labels.defined()) {
    tensors.emplace_back("loss", Tensor::of<float>({1}, {static_cast<float>(scores.loss)}));
  }
  write_safetensors(options.output, tensors);
}

}  // namespace

void add_logits_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("logits", "Write the logits of token ids in a safetensors file");
  add_model_options(*command, options->model);
  command
      ->add_option(
          "--input", options->input,
          "safetensors: input_ids [B, S]; optional lengths [B], segment_ids, position_ids, labels")
      ->required();
  command
      ->add_option("--output", options->output,
                   "safetensors: logits f32 [B, S, V], and loss [1] of labels")
      ->required();
  command->callback([options] { write_logits(*options); });
}

}  // namespace graft
