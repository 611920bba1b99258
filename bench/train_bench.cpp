// How fast graft trains, against how fast the machine could: a LoRA step of SmolLM2-135M (r 16 on
// all linear layers, batches of 4 x 256 random tokens, all trained, f32), and in the same run the
// bound made of the step's matrix products, each timed alone (bench/gemm_bound.h).
//
//   train_bench [--model FILE] [--steps N] [--threads N] [--cpu-time] [--json]
//
// Half of the steps run before the bound is measured and half after it, so that a slow minute of
// the machine hits both.

#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/log.h"
#include "bench/gemm_bound.h"
#include "bench/support.h"
#include "cpu/kernel.h"
#include "train/process.h"
#include "train/runner.h"
#include "train/start.h"
#include "train/trained.h"

namespace graft::bench {
namespace {

constexpr int64_t kRank = 16, kBatch = 4, kLength = 256;
constexpr int kDropped = 3;       // steps at the start, and
constexpr int kDroppedLater = 1;  // after the pause in which the bound is measured
constexpr double kPlannedConstant = 150e6;

struct Options {
  std::string model = default_model().string();
  int steps = 12;
  int threads = 0;
  bool cpu_time = false;
  bool json = false;

  Clock clock() const { return cpu_time ? Clock::kThread : Clock::kWall; }
};

double mebibytes(double bytes) { return bytes / (1024 * 1024); }

// What holds the memory of a run, in bytes.
struct Memory {
  double weights = 0, trained = 0, arena = 0;
  double before_arena = 0;  // resident just before the arena is allocated
  double measured_peak = 0;

  double planned_peak() const { return before_arena + arena; }
  double constant() const { return before_arena - weights; }  // all but the weights
};

class TrainBench {
 public:
  explicit TrainBench(const Options& options) : options_(options) {
    if (!options.cpu_time) threads_ = options.threads > 0 ? options.threads : omp_get_num_procs();
    state_ = load_model_state(options.model, DType::kF32, {.keep_packed = false});
    AdapterConfig config;
    config.r = kRank;
    config.lora_alpha = 2 * kRank;
    config.target_modules.expression = "all-linear";
    attach_adapter(state_, config, 0);
    const StepOptions step = adapter_step_options(state_);
    begin_optimizer(state_, step.trained, std::nullopt);
    for (const std::string& name : step.trained) {  // with both moments
      memory_.trained += 3 * static_cast<double>(state_.tensors.at(name).size_bytes());
    }
    for (const VariableSpec& v : state_.parameters) {
      memory_.weights += static_cast<double>(state_.tensors.at(v.name).size_bytes());
    }
    runner_.emplace(step, state_.tensors, threads_);
    shape_ = shape_of(random_batch());
    runner_->prepare_train(shape_);
    touch_mapped_pages(state_);
    memory_.before_arena = static_cast<double>(resident_bytes());
    memory_.arena = static_cast<double>(runner_->arena_bytes());
    runner_->reserve();
    start_up_ = process_age_seconds();
  }

  void run() {
    const int measured = std::max(options_.steps - kDropped, 2);
    train(kDropped, false);
    const auto before = profile();
    train(measured / 2, true);
    memory_.measured_peak = static_cast<double>(peak_resident_bytes());
    const auto pause = profile();
    if (!options_.json) info("measuring the bound");
    bound_ = measure_gemm_bound(state_, shape_, threads_, options_.clock());
    train(kDroppedLater, false);
    const auto resumed = profile();
    train(measured - measured / 2, true);
    for (const auto& [op, time] : profile()) {
      const auto seconds = [&](const auto& at) { return at.contains(op) ? at.at(op).seconds : 0; };
      const auto calls = [&](const auto& at) { return at.contains(op) ? at.at(op).calls : 0; };
      OperationTime step = time;
      step.seconds =
          (time.seconds - seconds(resumed) + seconds(pause) - seconds(before)) / measured;
      step.calls = (time.calls - calls(resumed) + calls(pause) - calls(before)) / measured;
      operations_.push_back(step);
    }
    std::sort(operations_.begin(), operations_.end(),
              [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  }

  void print() const;
  nlohmann::ordered_json json() const;

 private:
  Batch random_batch() {
    std::uniform_int_distribution<int32_t> token(
        0, static_cast<int32_t>(state_.config.vocab_size) - 1);
    std::vector<TokenizedExample> rows(kBatch);
    std::vector<std::vector<const TokenizedExample*>> sequences;
    for (TokenizedExample& row : rows) {
      for (int64_t i = 0; i < kLength; ++i) row.ids.push_back(token(random_));
      row.trained.assign(kLength, 1);
      row.trained[0] = 0;  // nothing stands before it
      sequences.push_back({&row});
    }
    return make_batch(sequences, kBatch, 1);
  }

  void train(int count, bool measured) {
    for (int i = 0; i < count; ++i) {
      const Batch batch = random_batch();
      const double start = seconds_now(options_.clock());
      const double wall = seconds_now(Clock::kWall), busy = seconds_now(Clock::kProcess);
      const StepResult result = runner_->train(batch, {.learning_rate = 1e-4, .step = ++step_});
      const double seconds = seconds_now(options_.clock()) - start;
      if (!result.finite) throw Error(fmt::format("the loss of step {} is not finite", step_));
      if (measured) {
        step_seconds_.push_back(seconds);
        wall_seconds_ += seconds_now(Clock::kWall) - wall;
        busy_seconds_ += seconds_now(Clock::kProcess) - busy;
      }
      if (!options_.json) {
        info("step {}: loss {:.4f}, {:.3f} s{}", step_, result.loss, seconds,
             measured ? "" : " (dropped)");
      }
    }
  }

  std::map<std::string, OperationTime> profile() const {
    std::map<std::string, OperationTime> by_name;
    for (const auto& time : runner_->profile()) by_name[time.op] = time;
    return by_name;
  }

  double step_time() const { return median(step_seconds_); }
  double tokens_per_second() const { return kBatch * kLength / step_time(); }
  double processor_share() const { return busy_seconds_ / wall_seconds_ / threads_; }
  double share() const { return bound_.seconds() / step_time(); }
  // Attention's products left out of the bound, not out of the step.
  double share_without_attention() const {
    return bound_.seconds_without_attention() / step_time();
  }

  // What an operation could take at best, or 0 where it has no product of its own.
  double bound_of(const std::string& op) const {
    if (op == "linear") return bound_.forward();
    if (op == "linear_input_grad") return bound_.input_gradients();
    if (op == "dot_general") return bound_.factor_gradients();
    if (op == "cross_entropy_with_grad") return bound_.head();
    if (op == "attention") return bound_.attention_forward;
    if (op == "attention_grad") return bound_.attention_backward;
    return 0;
  }

  void print_bound() const;
  void print_operations() const;
  void print_memory() const;

  const Options options_;
  int threads_ = 1;
  ModelState state_;
  std::optional<StepRunner> runner_;
  BatchShape shape_;
  std::mt19937 random_{0};
  int64_t step_ = 0;
  std::vector<double> step_seconds_;
  double wall_seconds_ = 0, busy_seconds_ = 0;  // of the measured steps; busy: of the processors
  std::vector<OperationTime> operations_;       // of one step, largest first
  GemmBound bound_;
  Memory memory_;
  double start_up_ = 0;
};

void TrainBench::print_bound() const {
  fmt::print("\nbound: every matrix product of the step alone, cold weights, the fastest way\n");
  fmt::print("  {:<16} {:<9} {:>18} {:>5} {:>8} {:>9}  {}\n", "layers", "", "rows x cols x depth",
             "count", "seconds", "GFLOP/s", "way");
  for (const ProductTime& p : bound_.products) {
    fmt::print("  {:<16} {:<9} {:>19} {:>5} {:>8.4f} {:>9.1f}  {}\n", p.name,
               p.gradient ? "gradient" : "forward",
               fmt::format("{} x {} x {}", p.rows, p.columns, p.depth), p.count, p.seconds,
               p.flops() / p.seconds / 1e9, p.way);
  }
  double base = 0;
  for (const ProductTime& p : bound_.products) base += p.seconds;
  const double rest = bound_.seconds_without_attention() - base;
  fmt::print("  base products {:.3f} s + low-rank products at their rate {:.3f} s\n", base, rest);
  fmt::print("  + attention's products {:.3f} s forward and {:.3f} s backward: bound {:.3f} s\n",
             bound_.attention_forward, bound_.attention_backward, bound_.seconds());
  const double ratio = bound_.rate() / bound_.square_rate;
  fmt::print(
      "  rate without attention {:.1f} GFLOP/s; best square product ({}, {}) {:.1f} GFLOP/s: "
      "{:.1f}%{}\n",
      bound_.rate() / 1e9, bound_.square_size, bound_.square_way, bound_.square_rate / 1e9,
      100 * ratio, ratio < 0.85 ? " (below 85%: see the rates above)" : "");
}

void TrainBench::print_operations() const {
  fmt::print("\n  {:<26} {:>8} {:>7} {:>6} {:>8} {:>8}\n", "operation", "s/step", "share", "calls",
             "bound s", "lost s");
  double total = 0;
  for (const auto& op : operations_) total += op.seconds;
  double rest = 0;
  int64_t rest_calls = 0;
  for (const auto& op : operations_) {
    const double bound = bound_of(op.op);
    if (op.seconds < 1e-3 * total) {
      rest += op.seconds;
      rest_calls += op.calls;
      continue;
    }
    fmt::print("  {:<26} {:>8.4f} {:>6.1f}% {:>6} {:>8} {:>8.4f}\n", op.op, op.seconds,
               100 * op.seconds / total, op.calls, bound > 0 ? fmt::format("{:.4f}", bound) : "",
               op.seconds - bound);
  }
  fmt::print("  {:<26} {:>8.4f} {:>6.1f}% {:>6}\n", "all others", rest, 100 * rest / total,
             rest_calls);
  fmt::print("  {:<26} {:>8.4f}\n", "sum (mean of the steps)", total);
}

void TrainBench::print_memory() const {
  const double error = memory_.measured_peak / memory_.planned_peak() - 1;
  fmt::print(
      "\nmemory: measured peak {:.0f} MiB, planned {:.0f} MiB ({:+.1f}%): {:.0f} resident before "
      "the "
      "step + {:.0f} arena\n",
      mebibytes(memory_.measured_peak), mebibytes(memory_.planned_peak()), 100 * error,
      mebibytes(memory_.before_arena), mebibytes(memory_.arena));
  fmt::print(
      "        weights {:.0f} MiB, adapter with moments {:.0f} MiB; constant besides weights "
      "{:.0f} MB "
      "(at most {:.0f})\n",
      mebibytes(memory_.weights), mebibytes(memory_.trained), memory_.constant() / 1e6,
      kPlannedConstant / 1e6);
  fmt::print("start-up: {:.2f} s from process start to the first step\n", start_up_);
}

void TrainBench::print() const {
  fmt::print("{}, {} threads, kernels for {}\n", processor_name(), threads_,
             cpu::instruction_set());
  print_bound();
  fmt::print("\nstep: {:.3f} s (median of {}; {:.3f} to {:.3f}), {:.1f} tokens/s, {:.1f} GFLOP/s\n",
             step_time(), step_seconds_.size(),
             *std::min_element(step_seconds_.begin(), step_seconds_.end()),
             *std::max_element(step_seconds_.begin(), step_seconds_.end()), tokens_per_second(),
             bound_.all_flops() / step_time() / 1e9);
  fmt::print("share of the bound: {:.1f}%; with attention's products left out of it {:.1f}%\n",
             100 * share(), 100 * share_without_attention());
  if (processor_share() < 0.95) {
    fmt::print(
        "warning: only {:.0f}% of the processors' time was to be had: wall times are too long\n",
        100 * processor_share());
  }
  print_operations();
  print_memory();
}

nlohmann::ordered_json TrainBench::json() const {
  nlohmann::ordered_json products = nlohmann::ordered_json::array();
  for (const ProductTime& p : bound_.products) {
    products.push_back({{"layers", p.name},
                        {"gradient", p.gradient},
                        {"rows", p.rows},
                        {"columns", p.columns},
                        {"depth", p.depth},
                        {"count", p.count},
                        {"seconds", p.seconds},
                        {"flops", p.flops()},
                        {"way", p.way}});
  }
  nlohmann::ordered_json operations = nlohmann::ordered_json::array();
  for (const auto& op : operations_) {
    operations.push_back({{"operation", op.op},
                          {"seconds", op.seconds},
                          {"calls", op.calls},
                          {"bound_seconds", bound_of(op.op)}});
  }
  return {{"processor", processor_name()},
          {"threads", threads_},
          {"instruction_set", cpu::instruction_set()},
          {"step_seconds", step_time()},
          {"steps", step_seconds_},
          {"clock", options_.cpu_time ? "processor time of one thread" : "wall"},
          {"processor_share", processor_share()},
          {"tokens_per_second", tokens_per_second()},
          {"bound_seconds", bound_.seconds()},
          {"attention_bound_seconds", bound_.attention()},
          {"share_of_bound", share()},
          {"share_of_bound_without_attention", share_without_attention()},
          {"bound_flops", bound_.all_flops()},
          {"bound_flops_per_second", bound_.rate()},
          {"square_flops_per_second", bound_.square_rate},
          {"square_size", bound_.square_size},
          {"measured_peak_bytes", memory_.measured_peak},
          {"planned_peak_bytes", memory_.planned_peak()},
          {"resident_before_arena_bytes", memory_.before_arena},
          {"arena_bytes", memory_.arena},
          {"weights_bytes", memory_.weights},
          {"trained_bytes", memory_.trained},
          {"constant_bytes", memory_.constant()},
          {"start_up_seconds", start_up_},
          {"products", products},
          {"operations", operations}};
}

}  // namespace
}  // namespace graft::bench

int main(int argc, char** argv) {
  graft::bench::Options options;
  CLI::App app("Times a LoRA train step of SmolLM2-135M against the bound of its matrix products");
  app.add_option("--model", options.model, "a .gguf file or a Hugging Face folder")
      ->capture_default_str();
  app.add_option("--steps", options.steps, "train steps; the first 3 are dropped")
      ->check(CLI::Range(5, 10000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "0: every core")->check(CLI::Range(0, 4096));
  app.add_flag("--cpu-time", options.cpu_time,
               "one thread, and its processor time: for a machine that others use too");
  app.add_flag("--json", options.json, "one JSON object on stdout");
  CLI11_PARSE(app, argc, argv);
  try {
    graft::bench::TrainBench bench(options);
    bench.run();
    if (options.json) {
      fmt::print("{}\n", bench.json().dump(2));
    } else {
      bench.print();
    }
  } catch (const std::exception& error) {
    graft::log_line(std::string("error: ") + error.what());
    return 1;
  }
  return 0;
}
