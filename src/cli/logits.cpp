// graft logits --model M [--adapter A] --input IN.safetensors --output OUT.safetensors

#include <CLI/CLI.hpp>
#include <filesystem>
#include <limits>
#include <memory>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/model_options.h"
#include "formats/safetensors.h"
#include "train/scorer.h"

namespace graft {
namespace {

struct Options {
  ModelOptions model;
  std::string input, output;
};

// What the integers of one tensor may be.
struct Range {
  int64_t least, most;
  std::string meaning;
};

// Of any integer type, before it becomes s32: nothing may be cut off.
void check_range(const Tensor& t, const std::string& name, const Range& range,
                 const std::string& path) {
  const Tensor wide = t.as(DType::kS64);
  const int64_t* values = wide.data<int64_t>();
  for (int64_t i = 0; i < wide.elements(); ++i) {
    if (values[i] >= range.least && values[i] <= range.most) continue;
    if (name == "labels" && values[i] == kIgnoredLabel) continue;
    throw Error(fmt::format("tensor \"{}\" holds {}; {}", name, values[i], range.meaning), path);
  }
}

// A tensor of integers [B, S] as s32; undefined if the file has none of that name.
Tensor read_tokens(const SafetensorsFile& file, const std::string& name, const Shape& shape,
                   const Range& range, const std::string& path) {
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
  check_range(t, name, range, path);
  return t.as(DType::kS32);
}

ScoreInput read_input(const std::string& path, int64_t vocabulary) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  if (!file.contains("input_ids")) throw Error("tensor \"input_ids\" is missing", path);
  ScoreInput input;
  const Range tokens{0, vocabulary - 1, fmt::format("the embedding has {} rows", vocabulary)};
  input.ids = read_tokens(file, "input_ids", {}, tokens, path);
  const Shape shape = input.ids.shape();
  if (shape.size() != 2 || input.ids.elements() == 0) {
    throw Error(
        fmt::format("tensor \"input_ids\" has shape {}, not [batch, tokens]", to_string(shape)),
        path);
  }
  const Range lengths{0, shape[1], fmt::format("the rows have {} tokens", shape[1])};
  const Range numbers{0, std::numeric_limits<int32_t>::max(), "it counts from 0"};
  const Range labels{0, vocabulary - 1, tokens.meaning + "; labels are token ids, or -100"};
  input.lengths = read_tokens(file, "lengths", {shape[0]}, lengths, path);
  input.segments = read_tokens(file, "segment_ids", shape, numbers, path);
  input.positions = read_tokens(file, "position_ids", shape, numbers, path);
  input.labels = read_tokens(file, "labels", shape, labels, path);
  return input;
}

void write_logits(const Options& options) {
  std::error_code ignored;
  if (std::filesystem::equivalent(options.input, options.output, ignored)) {
    throw Error("the output is the input file", options.output, "choose another file");
  }
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
      ->required()
      ->check(not_empty());
  command
      ->add_option("--output", options->output,
                   "safetensors: logits f32 [B, S, V], and loss [1] of labels")
      ->required()
      ->check(not_empty());
  command->callback([options] { write_logits(*options); });
}

}  // namespace graft
