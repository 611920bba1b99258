#pragma once
// A run of a tiny model on a few rows of token ids: a second of training in a few milliseconds.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "support/program.h"
#include "support/temporary.h"
#include "support/tiny_model.h"
#include "train/trainer.h"

namespace graft::testing {

// Rows of 5 to 40 token ids, all trained.
inline void write_tiny_rows(const std::filesystem::path& path, int count, uint64_t seed) {
  Philox random(seed, 1);
  std::string text;
  for (int row = 0; row < count; ++row) {
    nlohmann::json ids = nlohmann::json::array();
    for (uint64_t i = 0, n = 5 + random.below(36); i < n; ++i) ids.push_back(random.below(97));
    text += nlohmann::json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  write_file_atomically(path, text);
}

class TinyRun {
 public:
  TinyRun() {
    std::filesystem::create_directory(folder_ / "model");
    write_tiny_model(folder_ / "model");
    write_tiny_rows(folder_ / "train.jsonl", 23, 5);
    write_tiny_rows(folder_ / "eval.jsonl", 5, 6);
  }

  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }
  const std::filesystem::path& path() const { return folder_.path(); }

  // 11 steps of 2 x 2 rows: into a second epoch; later settings win.
  std::vector<std::string> settings(const std::string& output,
                                    const std::vector<std::string>& more = {}) const {
    std::vector<std::string> list = {
        "model=" + (folder_ / "model").string(),
        "output_dir=" + (folder_ / output).string(),
        "data.train=" + (folder_ / "train.jsonl").string(),
        "data.eval=" + (folder_ / "eval.jsonl").string(),
        "data.max_length=64",
        "lora.r=3",
        "lora.lora_dropout=0.1",
        "training.learning_rate=0.01",
        "training.lr_scheduler_type=cosine",
        "training.warmup_steps=2",
        "training.max_steps=11",
        "training.per_device_batch_size=2",
        "training.gradient_accumulation_steps=2",
        "training.weight_decay=0.1",
        "training.eval_steps=4",
        "training.logging_steps=3",
        "compute.dtype=f32",
        "compute.threads=1",
    };
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }

  TrainingSummary train(const std::string& output, const std::vector<std::string>& more = {},
                        const TrainingControl& control = {}) const {
    return run_training(parse_recipe("", "test", settings(output, more)), control);
  }

  // Stops after `steps` steps, as a signal would have it.
  TrainingSummary train_until(int64_t steps, const std::string& output,
                              const std::vector<std::string>& more = {}) const {
    TrainingControl control;
    int64_t asked = -1;
    control.stop_requested = [&asked, steps] { return ++asked >= steps; };
    control.stopped_by = [] { return std::string("a test"); };
    return train(output, more, control);
  }

 private:
  TemporaryFolder folder_;
};

// The metrics of a run without what depends on time and memory.
inline std::vector<nlohmann::json> comparable_metrics(const std::filesystem::path& run) {
  std::vector<nlohmann::json> rows;
  std::ifstream lines(run / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json row = nlohmann::json::parse(line);
    for (const char* key : {"tokens_per_second", "step_seconds", "peak_rss_bytes", "gemm_share"}) {
      row.erase(key);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// Every .safetensors file below a folder, by its path there.
inline std::map<std::string, std::string> tensor_files(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    files[std::filesystem::relative(entry.path(), folder).string()] = slurp(entry.path());
  }
  return files;
}

}  // namespace graft::testing
