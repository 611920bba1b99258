#pragma once
// From where a run goes on: decided before anything is loaded.
//
//   const ResumePlan plan = plan_resume(recipe, false);
//   if (plan.finished) ...                       // nothing is left to do
//   if (plan.checkpoint) ... plan.checkpoint->tensors("optimizer") ...
//
// training.resume: auto takes the newest whole checkpoint of output_dir, if there is one; never
// takes none, and refuses a folder that holds a run unless it may be overwritten; "step N" and a
// path take what they name.

#include <optional>
#include <string>
#include <vector>

#include "base/disk.h"
#include "checkpoint/checkpoint_folder.h"
#include "train/recipe.h"

namespace graft {

struct ResumePlan {
  std::optional<Checkpoint> checkpoint;  // none: begin anew
  bool elsewhere = false;                // it belongs to another run than output_dir's
  bool finished = false;                 // the run took all its steps and wrote its result
  bool forced = false;                   // differences are told, not refused
  bool overwrite = false;                // output_dir holds a run that goes before this one begins
  std::vector<std::string> notes, warnings;

  int64_t step() const { return checkpoint ? checkpoint->manifest.progress.step : 0; }
};

// `recipe` is not resolved yet: the day that templates see is taken over from the checkpoint.
// Leftovers of a crash are removed. Raises Error naming each key that keeps the run from going on,
// unless `force`.
ResumePlan plan_resume(Recipe& recipe, bool force);

// Where the files of a run lie in its folder.
std::string run_holding(const std::filesystem::path& output);  // what tells of a run; "" if none
void remove_run(const std::filesystem::path& output);

// Makes a run's folder and holds it for this process alone; raises Error where another process has
// it. A folder that is still empty at the end goes again.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& output);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  std::filesystem::path output_;
  bool created_;
  disk::Descriptor fd_;
};

}  // namespace graft
