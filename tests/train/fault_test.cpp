// The disk fails at every single call of a save: an error that says so, the checkpoint before it
// whole, and a run that goes on to the same end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_folder.h"
#include "support/errors.h"
#include "support/faulty_disk.h"
#include "support/tiny_run.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using testing::comparable_metrics;
using testing::error_of;
using testing::FaultyDisk;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::tensor_files;
using testing::TinyRun;
using Kind = FaultyDisk::Kind;

CheckpointContents small_contents(int64_t step) {
  CheckpointContents contents;
  contents.manifest.progress.step = step;
  for (const char* name : {"adapter_model", "optimizer"}) {
    contents.tensors.push_back({std::string(name) + ".safetensors",
                                name,
                                {{"x", Tensor::of<float>({2}, {1, static_cast<float>(step)})}}});
  }
  contents.texts.push_back({"recipe.resolved.yaml", "model: m\n"});
  return contents;
}

TEST(Faults, EveryCallOfASave) {
  for (const Kind kind : {Kind::kFull, Kind::kIoError, Kind::kShortWrite, Kind::kReadOnly}) {
    TemporaryFolder folder;
    const CheckpointFolder checkpoints(folder / "checkpoints");
    write_checkpoint(checkpoints.path(), small_contents(1));
    int64_t calls = 0;
    {
      const FaultyDisk disk(folder.path(), kind, INT64_MAX);
      write_checkpoint(checkpoints.path(), small_contents(2));
      calls = disk.calls();
    }
    EXPECT_GE(calls, 12);
    for (int64_t call = 1; call <= calls; ++call) {
      SCOPED_TRACE(fmt::format("kind {} call {}", static_cast<int>(kind), call));
      fs::remove_all(checkpoints.place_of(2));
      {
        const FaultyDisk disk(folder.path(), kind, call);
        const std::string error =
            error_of([&] { write_checkpoint(checkpoints.path(), small_contents(2)); });
        EXPECT_THAT(error, HasSubstr((folder / "checkpoints").string()));
        EXPECT_THAT(error, AnyOf(HasSubstr("No space left"), HasSubstr("Input/output error"),
                                 HasSubstr("Read-only")));
      }
      checkpoints.open(1);
      // The last call flushes the folder that holds a checkpoint which is whole already.
      EXPECT_EQ(fs::exists(checkpoints.place_of(2)), call == calls);
      checkpoints.remove_leftovers();
      for (const auto& entry : fs::directory_iterator(checkpoints.path())) {
        EXPECT_THAT(entry.path().filename().string(), ::testing::StartsWith("step-"));
        open_checkpoint(entry.path());
      }
    }
    write_checkpoint(checkpoints.path(), small_contents(2));
    checkpoints.open(2);
  }
}

TEST(Faults, ReplacingACheckpointLeavesOneOfTheTwo) {
  TemporaryFolder folder;
  const CheckpointFolder checkpoints(folder / "checkpoints");
  write_checkpoint(checkpoints.path(), small_contents(1));
  int64_t calls = 0;
  {
    const FaultyDisk disk(folder.path(), Kind::kFull, INT64_MAX);
    write_checkpoint(checkpoints.path(), small_contents(1));
    calls = disk.calls();
  }
  for (int64_t call = 1; call <= calls; ++call) {
    const FaultyDisk disk(folder.path(), Kind::kIoError, call);
    EXPECT_THROW(write_checkpoint(checkpoints.path(), small_contents(1)), Error);
    checkpoints.open(1);
  }
}

TEST(Faults, ARunGoesOnAfterEachFailureOfASave) {
  TinyRun tiny;
  const std::vector<std::string> settings = {
      "training.save_steps=4", "lora.target_modules=[q_proj]", "lora.layers_to_transform=[0]"};
  tiny.train("whole", settings);
  const auto files = tensor_files(tiny / "whole");
  const auto metrics = comparable_metrics(tiny / "whole");

  // The calls of the second save: of step 8, which is written while training goes on.
  const auto fault_at = [&](int64_t call, Kind kind) {
    fs::remove_all(tiny / "run");
    tiny.train_until(5, "run", settings);
    const FaultyDisk disk(tiny / "run/checkpoints", kind, call);
    std::string error = error_of([&] { tiny.train("run", settings); });
    return std::pair(std::move(error), disk.calls());
  };
  const int64_t calls = fault_at(INT64_MAX, Kind::kFull).second / 2;  // of two saves
  constexpr std::array<Kind, 4> kKinds = {Kind::kFull, Kind::kIoError, Kind::kShortWrite,
                                          Kind::kReadOnly};
  // Every other call: EveryCallOfASave leaves none out.
  for (int64_t call = 1; call <= calls; call += 2) {
    SCOPED_TRACE(fmt::format("call {} of {}", call, calls));
    const auto [error, made] =
        fault_at(call, kKinds[static_cast<size_t>(call / 2) % kKinds.size()]);
    EXPECT_THAT(error, HasSubstr("checkpoints"));
    EXPECT_FALSE(fs::exists(tiny / "run/adapter"));
    CheckpointFolder::of_run(tiny / "run").open(5);
    tiny.train("run", settings);
    EXPECT_EQ(comparable_metrics(tiny / "run"), metrics);
    const auto found = tensor_files(tiny / "run");
    for (const auto& [name, bytes] : files) {
      if (name.find("step-00000004") != std::string::npos) continue;
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_TRUE(found.at(name) == bytes) << name;
    }
  }
}

TEST(Faults, AResultThatCannotBeWrittenIsNoSuccess) {
  TinyRun tiny;
  tiny.train("whole");
  const auto files = tensor_files(tiny / "whole");
  int64_t calls = 0;
  {
    const FaultyDisk disk(tiny / "count", Kind::kFull, INT64_MAX);
    tiny.train("count");
    calls = disk.calls();
  }
  // From the end of the run backwards: the last checkpoint, the adapter, the summary.
  for (int64_t call = calls; call > std::max<int64_t>(0, calls - 45); call -= 4) {
    SCOPED_TRACE(fmt::format("call {} of {}", call, calls));
    fs::remove_all(tiny / "run");
    {
      const FaultyDisk disk(tiny / "run", Kind::kFull, call);
      EXPECT_THROW(tiny.train("run"), Error);
    }
    tiny.train("run");
    EXPECT_TRUE(tensor_files(tiny / "run") == files);
    EXPECT_EQ(comparable_metrics(tiny / "run"), comparable_metrics(tiny / "whole"));
  }
}

}  // namespace
}  // namespace graft
