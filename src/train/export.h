#pragma once
// Artefacts of a finished run that other programs load: a PEFT adapter, a merged Hugging Face
// folder, a GGUF adapter, a merged GGUF file, or bare parameters in another layout.
//
// Weights are streamed tensor by tensor, merged in f32 and rounded once. Each artefact is written
// aside, loaded again with graft's own reader, and its logits on a fixed sequence are compared with
// the run's; only then does it appear under its name. A mismatch raises Error and leaves nothing.
//
//   ExportResult result = export_run("runs/ada", {.format = ExportFormat::kGguf});
//   result.output;  // runs/ada/export/gguf

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/parameter_layout.h"
#include "train/compute.h"

namespace graft {

enum class ExportFormat : uint8_t { kPeft, kHuggingFace, kGgufAdapter, kGguf, kParams };
std::string_view export_format_name(ExportFormat format);  // "gguf-adapter"
const std::vector<ExportFormat>& export_formats();         // in the order of their help
std::optional<ExportFormat> find_export_format(std::string_view name);

struct ExportOptions {
  ExportFormat format = ExportFormat::kPeft;
  // Of the weights (f32, bf16, f16). None: an adapter in f32; merged weights as the base stores
  // them, f32 for the blocks of a GGUF.
  std::optional<DType> dtype = std::nullopt;
  // A folder, made if need be; files of the same names in it are replaced. Empty:
  // <run>/export/<format>.
  std::filesystem::path output = {};
  ParameterLayout layout = {};  // of kParams
};

// What is exported, where it does not come from a run.
struct ExportSource {
  std::filesystem::path model;
  std::filesystem::path adapter;  // empty: none
  Compute compute;
  std::string card;  // README.md of the artefact; empty: none
};

struct ExportResult {
  std::filesystem::path output;
  std::vector<std::string> files;
  double largest_difference = 0;   // of a logit from the run's
  double relative_difference = 0;  // root mean square, over that of the logits about their mean
  double allowed = 0;              // relative_difference may be this much
  double rounding_share = 0;       // see MergedWeights
  size_t dequantized = 0;          // packed matrices of the base that were expanded for it
};

// `run` is a run's output_dir. Raises Error if it holds no finished training, or if the artefact
// cannot state what the model computes.
ExportResult export_run(const std::filesystem::path& run, const ExportOptions& options);
ExportResult export_model(const ExportSource& source, const ExportOptions& options);

// Before training: raises Error if a format that the recipe asks for cannot state this model.
void check_exports(const Recipe& recipe, const ModelConfig& config);
// What an export of this model holds at once, besides the program itself, in bytes.
int64_t export_peak_bytes(const ModelConfig& config, DType compute);

}  // namespace graft
