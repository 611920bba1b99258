#include "train/export.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "adapters/gguf_adapter.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "models/gguf_layout.h"
#include "models/layout.h"
#include "train/artefact_folder.h"
#include "train/export_gguf.h"
#include "train/merged_weights.h"
#include "train/model_card.h"
#include "train/model_folder.h"
#include "train/params_file.h"
#include "train/scorer.h"

namespace graft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGgufModelName = "model.gguf";
constexpr const char* kGgufAdapterName = "adapter.gguf";
constexpr const char* kParamsName = "params.safetensors";

constexpr int64_t kProbeLength = 32;

// A fixed sequence of tokens, from all over the vocabulary.
ScoreInput probe(const ModelConfig& config) {
  const int64_t length = config.max_position_embeddings > 0
                             ? std::min(kProbeLength, config.max_position_embeddings)
                             : kProbeLength;
  ScoreInput input;
  input.ids = Tensor::empty(DType::kS32, {1, length});
  Philox random(0, fnv1a_32("export.probe"));
  for (int64_t i = 0; i < length; ++i) {
    const auto bound = static_cast<uint64_t>(config.vocab_size);
    input.ids.data<int32_t>()[i] = static_cast<int32_t>(random.below(bound));
  }
  return input;
}

// What rounding of weights or of activations may cost, as relative_difference; a wrong tensor, row
// order or scale costs far more.
double allowed_difference(DType weights, DType compute) {
  const auto of = [](DType dtype) {
    return dtype == DType::kBF16 ? 0.1 : dtype == DType::kF16 ? 0.02 : 1e-4;
  };
  return std::max(of(weights), of(compute));
}

struct Difference {
  double largest = 0, relative = 0;
};

Difference compare(const Tensor& found, const Tensor& expected, int64_t vocabulary) {
  Difference result;
  double error = 0, size = 0;
  const float* f = found.data<float>();
  const float* e = expected.data<float>();
  for (int64_t row = 0; row < expected.elements(); row += vocabulary) {
    double mean = 0;
    for (int64_t i = row; i < row + vocabulary; ++i) mean += static_cast<double>(e[i]);
    mean /= static_cast<double>(vocabulary);
    for (int64_t i = row; i < row + vocabulary; ++i) {
      const double d = static_cast<double>(f[i]) - static_cast<double>(e[i]);
      const double x = static_cast<double>(e[i]) - mean;
      // Also true of a NaN, which no comparison with a larger number finds.
      if (!(std::abs(d) <= result.largest)) result.largest = std::abs(d);
      error += d * d;
      size += x * x;
    }
  }
  result.relative = std::sqrt(error / std::max(size, 1e-30));
  return result;
}

class Exporter {
 public:
  Exporter(const ExportSource& source, const ExportOptions& options)
      : source_(source), options_(options), staged_(options.output) {}

  ExportResult run() {
    refuse_own_folder();
    state_ = load_model_state(source_.model, source_.compute.dtype);
    if (!source_.adapter.empty()) attach_adapter_folder(state_, source_.adapter);
    if (!adapter_alone()) result_.dequantized = state_.packed.size();
    const ScoreInput input = probe(state_.config);
    const Tensor expected = score(state_, source_.compute, input).logits;
    write();
    if (!source_.card.empty()) {
      write_file_atomically(staged_.path() / "README.md", source_.card);
    }
    load_again();
    verify(score(state_, source_.compute, input).logits, expected);
    state_ = {};  // nothing is mapped any more when files are replaced
    result_.files = staged_.files();
    staged_.publish();
    result_.output = options_.output;
    return result_;
  }

 private:
  bool adapter_alone() const {
    return options_.format == ExportFormat::kPeft || options_.format == ExportFormat::kGgufAdapter;
  }

  // Replacing files that are being read would destroy them.
  void refuse_own_folder() const {
    std::error_code error;
    for (const fs::path& own : {source_.model, source_.model.parent_path(), source_.adapter}) {
      const bool gguf_folder = own == source_.model.parent_path();
      if (own.empty() || (gguf_folder && !is_gguf(source_.model))) continue;
      if (!fs::equivalent(own, options_.output, error)) continue;
      throw Error("the output is a folder that the export reads", options_.output.string(),
                  "choose another folder");
    }
  }

  void write() {
    if (adapter_alone()) {
      require_adapter();
      write_adapter();
      return;
    }
    // The weights are read again one by one: what was held for the logits need not stay.
    for (const VariableSpec& v : state_.parameters) state_.tensors.erase(v.name);
    BaseWeights base = BaseWeights::open(source_.model, state_.config);
    if (options_.format == ExportFormat::kParams) {
      write_params_file(staged_.path() / kParamsName, state_.config, options_.layout, base,
                        state_.adapter, state_.adapter_config, state_.tensors, options_.dtype);
      return;
    }
    MergedWeights weights(std::move(base), state_.adapter, state_.tensors);
    if (options_.format == ExportFormat::kGguf) {
      std::string name = fs::weakly_canonical(source_.model).stem().string();
      write_gguf_model(staged_.path() / kGgufModelName,
                       {source_.model, state_.config, std::move(name), options_.dtype}, weights);
    } else {
      write_folder(weights);
    }
    result_.rounding_share = weights.rounding_share();
  }

  void require_adapter() const {
    if (!state_.adapter.sites.empty()) return;
    throw Error(
        fmt::format("there is no adapter to export as {}", export_format_name(options_.format)),
        source_.model.string(), "all weights were trained: export hf or gguf");
  }

  void write_adapter() {
    const DType dtype = options_.dtype.value_or(DType::kF32);
    if (options_.format == ExportFormat::kPeft) {
      save_adapter(staged_.path(), state_.adapter_config, state_.adapter, state_.tensors, dtype);
    } else {
      write_gguf_adapter(staged_.path() / kGgufAdapterName, state_.config, state_.adapter,
                         state_.tensors, dtype);
    }
  }

  void write_folder(MergedWeights& weights) {
    std::map<std::string, DType> types;
    for (const VariableSpec& v : weights.parameters()) {
      types[v.name] = options_.dtype.value_or(v.dtype);
    }
    std::optional<TextModel> text;
    if (is_gguf(source_.model) && has_tokenizer(source_.model)) {
      text = load_text_model(source_.model);
    }
    save_model_folder(
        staged_.path(), state_, text ? &*text : nullptr,
        [&](const std::string& name) { return weights.load(name, types.at(name)); },
        options_.dtype);
  }

  // Replaces what `state_` holds by what the artefact says.
  void load_again() {
    const ModelConfig config = state_.config;
    const DType dtype = source_.compute.dtype;
    switch (options_.format) {
      case ExportFormat::kPeft: attach_again(staged_.path()); return;
      case ExportFormat::kGgufAdapter: attach_again(staged_.path() / kGgufAdapterName); return;
      case ExportFormat::kParams: load_params(); return;
      case ExportFormat::kGguf:
        state_ = load_model_state(staged_.path() / kGgufModelName, dtype);
        break;
      case ExportFormat::kHuggingFace: state_ = load_model_state(staged_.path(), dtype); break;
    }
    check_config(state_.config, config);
  }

  void attach_again(const fs::path& adapter) {
    for (const VariableSpec& v : state_.adapter.variables) state_.tensors.erase(v.name);
    state_.adapter = {};
    attach_adapter_folder(state_, adapter);
  }

  void load_params() {
    ParamsFile file = read_params_file(staged_.path() / kParamsName, state_.config);
    for (const VariableSpec& v : state_.adapter.variables) state_.tensors.erase(v.name);
    state_.packed.clear();
    state_.parameters = base_parameters(state_.config);
    for (VariableSpec& v : state_.parameters) v.dtype = source_.compute.dtype;
    for (auto& [name, tensor] : file.tensors) {
      const bool low_rank = name.ends_with(".lora_A") || name.ends_with(".lora_B");
      state_.tensors.insert_or_assign(
          name, tensor.as(low_rank ? DType::kF32 : source_.compute.dtype).aligned());
    }
  }

  // What 32 tokens do not tell: frequencies that differ show far into a text only.
  void check_config(const ModelConfig& found, const ModelConfig& expected) const {
    const auto fail = [&](const std::string& what) {
      throw Error(fmt::format("the artefact states another {} than the model that was trained; "
                              "nothing was written",
                              what),
                  options_.output.string(), "report this: it is a fault in graft");
    };
    if (found.tie_word_embeddings != expected.tie_word_embeddings) fail("tying of the head");
    if (found.layers.size() != expected.layers.size()) fail("number of layers");
    const RopeConfig& a = found.ropes[0];
    const RopeConfig& b = expected.ropes[0];
    if (std::abs(a.attention_factor - b.attention_factor) > 1e-5 * b.attention_factor) {
      fail("attention factor");
    }
    for (size_t i = 0; i < b.inverse_frequencies.size(); ++i) {
      const double x = a.inverse_frequencies[i], y = b.inverse_frequencies[i];
      if (!(std::abs(x - y) <= 1e-5 * y)) fail("rotary embedding");
    }
  }

  void verify(const Tensor& found, const Tensor& expected) {
    const Difference difference = compare(found, expected, state_.config.vocab_size);
    result_.largest_difference = difference.largest;
    result_.relative_difference = difference.relative;
    result_.allowed =
        allowed_difference(options_.dtype.value_or(narrowest_stored()), source_.compute.dtype);
    if (difference.relative <= result_.allowed) return;
    throw Error(fmt::format("loaded again, its logits differ from the run's by {:.3g} of their "
                            "size; {:.3g} is allowed; nothing was written",
                            difference.relative, result_.allowed),
                options_.output.string(),
                options_.dtype ? "export with --dtype f32" : "report this: it is a fault in graft");
  }

  // Merged weights are rounded to what the base stores where no type was asked for.
  DType narrowest_stored() const {
    if (adapter_alone() || is_gguf(source_.model)) return DType::kF32;
    DType narrowest = DType::kF32;
    const BaseWeights weights = BaseWeights::open(source_.model, state_.config);
    for (const VariableSpec& v : weights.parameters()) {
      if (v.dtype == DType::kBF16) return DType::kBF16;
      if (v.dtype == DType::kF16) narrowest = DType::kF16;
    }
    return narrowest;
  }

  const ExportSource& source_;
  const ExportOptions& options_;
  StagedFolder staged_;
  ModelState state_;
  ExportResult result_;
};

void report(const ExportResult& result, const ExportOptions& options) {
  info(
      "{}: loaded again, logits differ from the run's by at most {:.3g} ({:.2g} of their size; "
      "{:.2g} is allowed)",
      export_format_name(options.format), result.largest_difference, result.relative_difference,
      result.allowed);
  if (result.dequantized > 0) {
    info("written from the dequantised base: {} packed matrices were expanded", result.dequantized);
  }
  if (result.rounding_share > 1e-3) {
    info("rounding the merged weights undid {:.2g}% of what training changed",
         100 * result.rounding_share);
  }
  info("wrote {}", result.output.string());
}

struct NamedFormat {
  ExportFormat format;
  std::string_view name;
};
constexpr std::array kFormats = {
    NamedFormat{ExportFormat::kPeft, "peft"}, NamedFormat{ExportFormat::kHuggingFace, "hf"},
    NamedFormat{ExportFormat::kGgufAdapter, "gguf-adapter"},
    NamedFormat{ExportFormat::kGguf, "gguf"}, NamedFormat{ExportFormat::kParams, "params"}};

}  // namespace

std::string_view export_format_name(ExportFormat format) {
  for (const NamedFormat& each : kFormats) {
    if (each.format == format) return each.name;
  }
  return "";
}

const std::vector<ExportFormat>& export_formats() {
  static const std::vector<ExportFormat> formats = [] {
    std::vector<ExportFormat> list;
    for (const NamedFormat& each : kFormats) list.push_back(each.format);
    return list;
  }();
  return formats;
}

std::optional<ExportFormat> find_export_format(std::string_view name) {
  for (const NamedFormat& each : kFormats) {
    if (each.name == name) return each.format;
  }
  return std::nullopt;
}

ExportResult export_model(const ExportSource& source, const ExportOptions& options) {
  ExportResult result = Exporter(source, options).run();
  report(result, options);
  return result;
}

ExportResult export_run(const fs::path& run, const ExportOptions& given) {
  const fs::path recipe_path = run / "recipe.resolved.yaml";
  if (!fs::exists(recipe_path)) {
    throw Error("is no run: it has no recipe.resolved.yaml", run.string(),
                "give the output_dir of a training");
  }
  const Recipe recipe = load_recipe(recipe_path);
  const bool full = recipe.training.method == TrainingMethod::kFull;
  const fs::path trained = run / (full ? "model" : "adapter");
  if (!fs::exists(trained)) {
    throw Error(fmt::format("the run has no {} yet", trained.filename().string()), run.string(),
                "let the training finish: graft train on its recipe continues it");
  }
  ExportSource source;
  source.model = full ? trained : fs::path(recipe.model);
  if (!full) source.adapter = trained;
  source.compute = choose_compute(recipe.compute, source.model);
  source.card = model_card(run, recipe, export_format_name(given.format));
  ExportOptions options = given;
  if (options.output.empty()) {
    options.output = run / "export" / std::string(export_format_name(options.format));
  }
  return export_model(source, options);
}

void check_exports(const Recipe& recipe, const ModelConfig& config) {
  for (const std::string& format : recipe.exports) {
    if (format != "gguf" && format != "gguf-adapter") continue;
    GgufMetadata metadata;
    // A GGUF base states itself.
    if (!is_gguf(recipe.model)) write_gguf_config(config, metadata);
  }
}

int64_t export_peak_bytes(const ModelConfig& config, DType compute) {
  // All weights once, for the logits of the run or of the artefact; one tensor as it is stored,
  // merged, rounded and compared; both logits.
  constexpr int64_t kCopies = 4, kF32 = sizeof(float);
  int64_t weights = 0, largest = 0;
  for (const VariableSpec& v : base_parameters(config)) {
    const int64_t count = element_count(v.shape);
    weights += static_cast<int64_t>(dtype_bytes(compute, static_cast<size_t>(count)));
    largest = std::max(largest, count * kF32);
  }
  return weights + kCopies * largest + 2 * kProbeLength * config.vocab_size * kF32;
}

}  // namespace graft
