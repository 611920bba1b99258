// graft export RUN --format peft|hf|gguf-adapter|gguf|params [--dtype T] [--output DIR]

#include "train/export.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace graft {
namespace {

struct Options {
  std::string run, format, dtype, output, layout = "scanned", wrapper = "params/params";
  int64_t scan_axis = 1;
  bool json = false;
};

ParameterLayout layout_of(const Options& options) {
  using Layers = ParameterLayout::Layers;
  using Wrapper = ParameterLayout::Wrapper;
  ParameterLayout layout;
  layout.scan_axis = options.scan_axis;
  if (options.layout == "hf") layout.naming = ParameterLayout::Naming::kHuggingFace;
  if (options.layout == "layers_0") layout.layers = Layers::kUnderscore;
  if (options.layout == "layers/0") layout.layers = Layers::kNested;
  if (options.layout == "0") layout.layers = Layers::kNumber;
  if (options.wrapper == "none") layout.wrapper = Wrapper::kNone;
  if (options.wrapper == "params") layout.wrapper = Wrapper::kParams;
  if (options.wrapper == "base") layout.wrapper = Wrapper::kBase;
  return layout;
}

void run_export(const Options& options) {
  ExportOptions e;
  e.format = *find_export_format(options.format);
  if (!options.dtype.empty()) e.dtype = dtype_from_name(options.dtype);
  e.output = options.output;
  e.layout = layout_of(options);
  const ExportResult result = export_run(options.run, e);
  if (!options.json) return;
  print_json({{"format", options.format},
              {"output", result.output.string()},
              {"files", result.files},
              {"largest_difference", result.largest_difference},
              {"relative_difference", result.relative_difference},
              {"allowed_difference", result.allowed},
              {"rounding_share", result.rounding_share}});
}

}  // namespace

void add_export_command(CLI::App& app) {
  std::vector<std::string> formats;
  for (const ExportFormat f : export_formats()) formats.emplace_back(export_format_name(f));
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "export", "Write what a run trained as other programs load it, and check it");
  command->add_option("RUN", options->run, "A run's output_dir")->required();
  command->add_option("--format", options->format, "What to write")
      ->required()
      ->check(CLI::IsMember(formats));
  command
      ->add_option("--dtype", options->dtype,
                   "Type of the weights (default: as stored; adapters f32)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  command->add_option("--output", options->output, "A folder (default: RUN/export/FORMAT)");
  command
      ->add_option("--layout", options->layout,
                   "params: layers stacked, or a key each, or Hugging Face names (default scanned)")
      ->check(CLI::IsMember({"scanned", "layers_0", "layers/0", "0", "hf"}));
  command->add_option("--scan-axis", options->scan_axis, "params: axis of the layers (default 1)")
      ->check(CLI::Range(0, 4));
  command
      ->add_option("--wrapper", options->wrapper,
                   "params: what stands before decoder (default params/params)")
      ->check(CLI::IsMember({"none", "params", "params/params", "base"}));
  command->add_flag("--json", options->json, "One JSON object on stdout");
  command->callback([options, command] {
    for (const char* name : {"--layout", "--scan-axis", "--wrapper"}) {
      if (command->count(name) == 0 || options->format == "params") continue;
      throw CLI::ValidationError(name, "belongs to --format params");
    }
    run_export(*options);
  });
}

}  // namespace graft
