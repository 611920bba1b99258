// Time per generated token early and late in a sequence: attention grows with the position, the
// rest does not, so the two should differ little.
//
//   decode_bench [--model FILE] [--tokens N] [--threads N] [--json]
//
// Two decoders take turns, one about position 10 and one about position 1000, so that a slow moment
// of the machine hits both.

#include <omp.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "bench/support.h"
#include "train/decoder.h"

namespace graft::bench {
namespace {

constexpr int64_t kEarly = 10, kLate = 1000;

struct Options {
  std::string model = default_model().string();
  int tokens = 30;
  int threads = 0;
  bool json = false;
};

class Position {
 public:
  Position(const ModelState& state, int threads, int64_t position)
      : decoder_(state, {threads, DType::kF32, ""}),
        position_(position),
        vocabulary_(state.config.vocab_size) {
    std::vector<int32_t> prompt;
    for (int64_t i = 0; i < position; ++i) prompt.push_back(token(i));
    decoder_.feed(prompt);
    take();  // compiles what single tokens need
    seconds_.clear();
  }

  // One more token at this position.
  void take() {
    decoder_.truncate(position_);
    const int32_t next[] = {token(static_cast<int64_t>(seconds_.size()))};
    const double start = seconds_now(Clock::kWall);
    decoder_.feed(next);
    seconds_.push_back(seconds_now(Clock::kWall) - start);
  }

  double seconds() const { return median(seconds_); }

 private:
  int32_t token(int64_t i) const { return static_cast<int32_t>((i * 7919 + 11) % vocabulary_); }

  Decoder decoder_;
  int64_t position_, vocabulary_;
  std::vector<double> seconds_;
};

void run(const Options& options) {
  const int threads = options.threads > 0 ? options.threads : omp_get_num_procs();
  const ModelState state = load_model_state(options.model, DType::kF32, {.keep_packed = false});
  Position early(state, threads, kEarly), late(state, threads, kLate);
  for (int i = 0; i < options.tokens; ++i) {
    early.take();
    late.take();
  }
  const double ratio = late.seconds() / early.seconds();
  if (options.json) {
    const nlohmann::ordered_json result = {{"processor", processor_name()},
                                           {"threads", threads},
                                           {"seconds_at_10", early.seconds()},
                                           {"seconds_at_1000", late.seconds()},
                                           {"ratio", ratio}};
    fmt::print("{}\n", result.dump(2));
    return;
  }
  fmt::print("{}, {} threads\n", processor_name(), threads);
  fmt::print("time per token: {:.2f} ms at position {}, {:.2f} ms at position {}: {:.2f}x\n",
             1e3 * early.seconds(), kEarly, 1e3 * late.seconds(), kLate, ratio);
}

}  // namespace
}  // namespace graft::bench

int main(int argc, char** argv) {
  graft::bench::Options options;
  CLI::App app("Times generation with the key/value cache early and late in a sequence");
  app.add_option("--model", options.model, "a .gguf file or a Hugging Face folder")
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "tokens timed at each position")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "0: every core")->check(CLI::Range(0, 4096));
  app.add_flag("--json", options.json, "one JSON object on stdout");
  CLI11_PARSE(app, argc, argv);
  try {
    graft::bench::run(options);
  } catch (const std::exception& error) {
    graft::log_line(std::string("error: ") + error.what());
    return 1;
  }
  return 0;
}
