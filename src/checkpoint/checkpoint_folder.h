#pragma once
// The checkpoints of a run: the folder output_dir/checkpoints.
//
//   CheckpointFolder checkpoints("runs/a/checkpoints");
//   checkpoints.remove_leftovers();
//   std::optional<Checkpoint> newest = checkpoints.newest_whole(refused);
//   checkpoints.keep_newest(3);

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace graft {

class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path path) : path_(std::move(path)) {}
  // The one of a run's folder.
  static CheckpointFolder of_run(const std::filesystem::path& run) {
    return CheckpointFolder(run / "checkpoints");
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path place_of(int64_t step) const { return path_ / checkpoint_name(step); }
  std::vector<int64_t> steps() const;  // ascending; by name, whole or not

  // What a crash left behind: names that begin with ".tmp-". Returns them.
  std::vector<std::string> remove_leftovers() const;

  // The newest whole one of at most `until` steps. Why newer ones were refused is added to
  // `refused`.
  std::optional<Checkpoint> newest_whole(std::vector<Error>& refused,
                                         int64_t until = INT64_MAX) const;

  // A given one. Where it is refused, the error offers the newest whole one before it.
  Checkpoint open(int64_t step) const;

  // Removes all but the newest `count`.
  void keep_newest(int64_t count) const;

  // Sets aside those of later steps, as "superseded-step-...": a run that goes on after `step` will
  // write its own. Returns how many.
  int64_t supersede_after(int64_t step) const;

 private:
  std::filesystem::path path_;
};

// A checkpoint, or the newest whole one of a run. Raises Error where there is none, or as
// CheckpointFolder::open does.
Checkpoint open_checkpoint_or_run(const std::filesystem::path& path);

// "step-00000100" to 100.
std::optional<int64_t> step_of_name(std::string_view name);

}  // namespace graft
