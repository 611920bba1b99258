#pragma once
// The manifest of a checkpoint: where the run stood, and every file with its size and checksum.
//
// A checkpoint is the folder checkpoints/step-00000100 of a run: manifest.json and the files that
// it lists. Each file belongs to a part of the state ("adapter", "params", "optimizer", "random",
// "batch_stats"; "description" for what is no tensor) and to a shard: each process of a run may
// write a shard of its own, and a part is all of its files together. manifest.json is the last file
// that is written.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/batches.h"

namespace graft {

inline constexpr int64_t kCheckpointFormatVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";

struct Evaluation {
  int64_t step = 0;
  double loss = 0;  // nats a token
  int64_t tokens = 0;
};

// What was added up since the last line of metrics.
struct MetricsInterval {
  double loss = 0, seconds = 0, flops = 0;
  int64_t trained_tokens = 0, tokens = 0, steps = 0;
};

// How far a run has come, but for its tensors.
struct RunProgress {
  int64_t step = 0;  // completed optimiser steps
  int64_t tokens = 0, trained_tokens = 0;
  DataPosition position;  // of the next batch
  double loss = 0;        // of the last line of metrics
  MetricsInterval interval;
  std::optional<Evaluation> first_evaluation, best_evaluation, last_evaluation;
};

struct DataIdentity {
  std::string sha256;  // of the rows' tokens, and which of them are trained
  int64_t rows = 0, sequences_per_epoch = 0;
  bool packing = false, shuffle = true;
};

struct ScheduleState {
  std::string type;
  double learning_rate = 0;  // the peak
  int64_t warmup_steps = 0, total_steps = 0;
};

struct ComputeIdentity {
  std::string executor, instruction_set, dtype;
};

struct CheckpointFile {
  std::string name;
  std::string part;
  int64_t shard = 0;
  uint64_t bytes = 0;
  std::string sha256;
};

struct Manifest {
  std::string graft_version;
  std::string recipe_sha256;
  RunProgress progress;
  DataIdentity data;
  ScheduleState schedule;
  uint64_t seed = 0;
  ComputeIdentity compute;
  std::string base_path, base_header_sha256;
  std::vector<CheckpointFile> files;

  const CheckpointFile* find(std::string_view name) const;  // nullptr if there is none
};

std::string format_manifest(const Manifest& manifest);
// Raises Error naming the key; a format of a later graft is refused.
Manifest parse_manifest(std::string_view text, const std::string& name);

std::string graft_version();

}  // namespace graft
