// graft quantize --model M --scheme nf4 --output DIR

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "train/model_folder.h"
#include "train/quantized_folder.h"

namespace graft {
namespace {

struct Options {
  std::string model, scheme = "nf4", output;
  QuantizationOptions quantization;
  std::vector<std::string> modules, keep;
  bool json = false;
};

void write_expanded(const Options& options) {
  const ModelState state = load_model_state(options.model, DType::kF32);
  std::optional<TextModel> text;
  if (is_gguf(options.model)) text = load_text_model(options.model);
  save_model_folder(options.output, state, text ? &*text : nullptr,
                    [&](const std::string& name) { return dense_parameter(state, name); });
  info("expanded {} packed matrices into {}", state.packed.size(), options.output);
  if (options.json) print_json({{"expanded", state.packed.size()}});
}

void quantize_model(Options options) {
  std::error_code error;
  if (std::filesystem::equivalent(options.model, options.output, error)) {
    throw Error("the output is the model's own folder", options.output, "choose another folder");
  }
  if (options.scheme == "none") {
    write_expanded(options);
    return;
  }
  if (options.scheme != "nf4") {
    throw Error(fmt::format("\"{}\" cannot be written", options.scheme), "--scheme",
                "nf4 is written, in the layout of bitsandbytes; none writes a dequantised copy; "
                "int8, int4 and fp8 are quantised when a run begins (quantization: int8)");
  }
  options.quantization.scheme = QuantizationScheme::kNf4;
  options.quantization.layout = QuantizationLayout::kBitsAndBytes;
  options.quantization.modules.suffixes = options.modules;
  options.quantization.keep.suffixes = options.keep;
  const QuantizedFolder folder =
      write_quantized_folder(options.output, options.model, options.quantization);
  double worst = 0, sum = 0;
  for (const auto& [name, e] : folder.error) {
    worst = std::max(worst, e);
    sum += e;
  }
  const double mean = folder.modules > 0 ? sum / static_cast<double>(folder.modules) : 0;
  info("quantised {} modules into {}: {:.1f} MB, relative error {:.4f} in the mean, {:.4f} at most",
       folder.modules, options.output, static_cast<double>(folder.packed_bytes) / 1e6, mean, worst);
  if (options.json) {
    print_json({{"modules", folder.modules},
                {"bytes", folder.packed_bytes},
                {"mean_relative_error", mean},
                {"relative_error", folder.error}});
  }
}

}  // namespace

void add_quantize_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "quantize", "Write a model with its linear layers in NF4, as bitsandbytes keeps them");
  command->add_option("--model", options->model, "A Hugging Face folder, or a .gguf file")
      ->required();
  command->add_option("--scheme", options->scheme,
                      "nf4, or none: a dequantised copy of a quantised model");
  command->add_option("--output", options->output, "The Hugging Face folder to write")->required();
  command->add_option("--block-size", options->quantization.block_size,
                      "Weights that share a scale (64)");
  command->add_flag("--double-quant", options->quantization.double_quant,
                    "Quantise the scales too");
  command->add_option("--modules", options->modules,
                      "The linear layers to quantise, by name (all)");
  command->add_option("--keep", options->keep, "Of those, the ones that stay as they are");
  command->add_flag("--json", options->json, "Print what was done as JSON");
  command->callback([options] { quantize_model(*options); });
}

}  // namespace graft
