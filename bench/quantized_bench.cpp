// How fast training on packed bases is, against the same run on an f32 base: a LoRA step of
// SmolLM2-135M (r 16 on all linear layers, batches of 4 x 256 random tokens, all trained, f32) on
// the dequantised base, on NF4, on NF4 double quantised, and on the GGUF's own blocks, in turns, so
// that a slow minute of the machine hits all of them.
//
//   quantized_bench [--model FILE.gguf] [--steps N] [--threads N] [--json]

#include <omp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/log.h"
#include "bench/support.h"
#include "models/layout.h"
#include "train/model_folder.h"
#include "train/runner.h"
#include "train/start.h"
#include "train/trained.h"

namespace graft::bench {
namespace {

constexpr int64_t kRank = 16, kBatch = 4, kLength = 256;
constexpr int kDropped = 2;

struct Options {
  std::string model = default_model().string();
  int steps = 10;
  int threads = 0;
  bool json = false;
};

// A run of its own: state, program, times.
class Variant {
 public:
  Variant(std::string name, ModelState state, int threads)
      : name_(std::move(name)), state_(std::move(state)) {
    AdapterConfig config;
    config.r = kRank;
    config.lora_alpha = 2 * kRank;
    config.target_modules.expression = "all-linear";
    attach_adapter(state_, config, 0);
    const StepOptions step = adapter_step_options(state_);
    begin_optimizer(state_, step.trained, std::nullopt);
    runner_.emplace(step, state_.tensors, threads);
  }

  void train(const Batch& batch, bool measured) {
    const double start = seconds_now(Clock::kWall);
    const StepResult result = runner_->train(batch, {.learning_rate = 1e-4, .step = ++step_});
    if (!result.finite) throw Error(fmt::format("the loss of step {} is not finite", step_));
    if (measured) seconds_.push_back(seconds_now(Clock::kWall) - start);
    loss_ = result.loss;
  }

  const std::string& name() const { return name_; }
  double tokens_per_second() const { return kBatch * kLength / median(seconds_); }
  double loss() const { return loss_; }
  // Bytes of the linear layers, and of those in f32.
  std::pair<double, double> bytes() const {
    double held = 0, dense = 0;
    for (const LinearModule& m : all_linears(state_.config)) {
      held += static_cast<double>(state_.tensors.at(m.name + ".weight").size_bytes());
      dense += 4.0 * static_cast<double>(m.in * m.out);
    }
    return {held, dense};
  }
  std::string embedding() const {
    const auto layout = state_.packed.find(kEmbeddingName);
    return layout == state_.packed.end() ? "f32" : layout->second.scheme();
  }

 private:
  std::string name_;
  ModelState state_;
  std::optional<StepRunner> runner_;
  int64_t step_ = 0;
  std::vector<double> seconds_;
  double loss_ = 0;
};

Batch random_batch(std::mt19937& random, int64_t vocabulary) {
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(vocabulary) - 1);
  std::vector<TokenizedExample> rows(kBatch);
  std::vector<std::vector<const TokenizedExample*>> sequences;
  for (TokenizedExample& row : rows) {
    for (int64_t i = 0; i < kLength; ++i) row.ids.push_back(token(random));
    row.trained.assign(kLength, 1);
    row.trained[0] = 0;  // nothing stands before it
    sequences.push_back({&row});
  }
  return make_batch(sequences, kBatch, 1);
}

void run(const Options& options) {
  const int threads = options.threads > 0 ? options.threads : omp_get_num_procs();
  const std::filesystem::path dense =
      std::filesystem::temp_directory_path() / fmt::format("graft-bench-{}", ::getpid());
  const TextModel text = load_text_model(options.model);
  {
    const ModelState packed = load_model_state(options.model, DType::kF32);
    save_model_folder(dense, packed, &text,
                      [&](const std::string& name) { return dense_parameter(packed, name); });
  }
  std::vector<std::unique_ptr<Variant>> variants;
  const auto add = [&](const char* name, const std::filesystem::path& path,
                       const QuantizationOptions& quantization) {
    variants.push_back(std::make_unique<Variant>(
        name, load_model_state(path, DType::kF32, {.quantization = quantization}), threads));
  };
  QuantizationOptions nf4;
  nf4.scheme = QuantizationScheme::kNf4;
  add("f32", dense, {});
  add("nf4", dense, nf4);
  nf4.double_quant = true;
  add("nf4 double", dense, nf4);
  add("gguf in place", options.model, {});
  std::filesystem::remove_all(dense);  // what is mapped of it stays

  std::mt19937 random(0);
  const int64_t vocabulary = read_model_config(options.model).vocab_size;
  for (int i = 0; i < options.steps + kDropped; ++i) {
    const Batch batch = random_batch(random, vocabulary);
    for (const auto& variant : variants) variant->train(batch, i >= kDropped);
  }
  nlohmann::ordered_json report = nlohmann::ordered_json::object();
  const double reference = variants[0]->tokens_per_second();
  for (const auto& variant : variants) {
    const auto [held, whole] = variant->bytes();
    report[variant->name()] = {{"tokens_per_second", variant->tokens_per_second()},
                               {"share_of_f32_speed", variant->tokens_per_second() / reference},
                               {"linear_bytes", held},
                               {"share_of_f32_bytes", held / whole},
                               {"embedding", variant->embedding()},
                               {"loss", variant->loss()}};
    if (options.json) continue;
    fmt::print(
        "{:<14} {:>7.0f} tokens/s ({:.3f} of f32); linear layers {:>6.1f} MB ({:.4f} of f32); "
        "embedding and head apart: {}; last loss {:.5f}\n",
        variant->name(), variant->tokens_per_second(), variant->tokens_per_second() / reference,
        held / 1e6, held / whole, variant->embedding(), variant->loss());
  }
  if (options.json) fmt::print("{}\n", report.dump());
}

}  // namespace
}  // namespace graft::bench

int main(int argc, char** argv) {
  graft::bench::Options options;
  CLI::App app("Training on packed bases against f32");
  app.add_option("--model", options.model, "a quantised .gguf file");
  app.add_option("--steps", options.steps, "measured steps of each")->check(CLI::Range(1, 10000));
  app.add_option("--threads", options.threads, "0: every core")->check(CLI::Range(0, 4096));
  app.add_flag("--json", options.json, "one JSON object on stdout");
  CLI11_PARSE(app, argc, argv);
  try {
    graft::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
