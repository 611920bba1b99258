#pragma once
// The checkpoints of a run in progress: what goes into one, and when it is written.
//
//   RunCheckpoints checkpoints(run, length);
//   if (checkpoints.due(step)) checkpoints.save();   // goes on in the background
//   checkpoints.save_last();                         // and waits

#include <filesystem>

#include "checkpoint/background_writer.h"
#include "train/prepare.h"
#include "train/schedule.h"

namespace graft {

class RunCheckpoints {
 public:
  // `run` outlives this, with its progress up to date at each save.
  RunCheckpoints(PreparedRun& run, ScheduleLength length);

  // Whether training.save_steps asks for one after this step and training goes on after it.
  bool due(int64_t step) const;
  // Copies the state and writes it in the background; waits, and says so, where the last save is
  // still running. Raises what that one raised.
  void save();
  // In this thread; nothing if the state of this step is saved already. Returns its folder.
  std::filesystem::path save_last();
  // Raises the failure of a save in the background, once it has ended.
  void raise_failure() { writer_.raise_failure(); }

 private:
  CheckpointContents contents() const;
  void add_base(CheckpointContents& contents) const;

  PreparedRun& run_;
  ScheduleLength length_;
  BackgroundWriter writer_;
  int64_t saved_ = -1;  // the step that was saved last
};

}  // namespace graft
