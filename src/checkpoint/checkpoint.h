#pragma once
// One checkpoint as a folder: written whole or not at all, and read back with every byte checked.
//
//   CheckpointContents contents = ...;                    // tensors, texts, the manifest
//   write_checkpoint("runs/a/checkpoints", contents);     // -> checkpoints/step-00000100
//   Checkpoint saved = open_checkpoint("runs/a/checkpoints/step-00000100");   // all verified
//   NamedTensors moments = saved.tensors("optimizer");
//
// Files are written into checkpoints/.tmp-step-..., each flushed to the disk; then the folder is
// renamed, and its parent flushed. A crash at any instant leaves leftovers that begin with ".tmp-"
// and nothing else.

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "adapters/adapter_file.h"
#include "checkpoint/base_identity.h"
#include "checkpoint/manifest.h"
#include "checkpoint/state_split.h"

namespace graft {

inline constexpr const char* kTemporaryPrefix = ".tmp-";
inline constexpr const char* kBasePart = "base";  // frozen: the same in every checkpoint

struct CheckpointTensorFile {
  std::string name;  // "optimizer.safetensors"
  std::string part;
  std::vector<std::pair<std::string, Tensor>> tensors;
};

struct CheckpointTextFile {
  std::string name;
  std::string text;
};

struct CheckpointContents {
  Manifest manifest;  // its list of files is made while writing
  std::vector<CheckpointTensorFile> tensors;
  std::vector<CheckpointTextFile> texts;
};

// A state as files: the adapter in PEFT's format (adapter_model.safetensors), parameters by Hugging
// Face name (model.safetensors), optimizer.safetensors, random.safetensors,
// batch_stats.safetensors and base.safetensors; each where it holds anything. Tensors are shared,
// not copied.
std::vector<CheckpointTensorFile> checkpoint_tensor_files(const StateParts& parts,
                                                          const AdapterPlan& adapter);

std::string checkpoint_name(int64_t step);  // "step-00000100"

// Raises Error where a value is not finite, and where the disk fails; then nothing of it is left
// but, where even that cannot be removed, a leftover. An older checkpoint of the same step is
// replaced. Returns the folder.
std::filesystem::path write_checkpoint(const std::filesystem::path& checkpoints,
                                       CheckpointContents contents);

// The files alone, into a new folder, without a manifest: what a shard's process writes. Returns
// their list. The manifest's files are those of all shards.
std::vector<CheckpointFile> write_checkpoint_files(const std::filesystem::path& folder,
                                                   const CheckpointContents& contents,
                                                   int64_t shard = 0);

struct Checkpoint {
  std::filesystem::path folder;
  Manifest manifest;

  // A part of the state, from all of its files. Raises Error for a tensor that is there twice.
  NamedTensors tensors(std::string_view part) const;
  std::string text(const std::string& name) const;
  BaseIdentity base() const;
};

// Reads the manifest and compares every file's size and checksum with it. Raises Error naming the
// file.
Checkpoint open_checkpoint(const std::filesystem::path& folder);

}  // namespace graft
