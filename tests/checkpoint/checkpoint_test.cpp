#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "checkpoint/background_writer.h"
#include "checkpoint/checkpoint_folder.h"
#include "formats/safetensors.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

float first_moment(const Checkpoint& checkpoint) {
  const NamedTensors moments = checkpoint.tensors("optimizer");
  return moments.at("m").data<float>()[0];
}

Tensor value(float x) { return Tensor::of<float>({1}, {x}); }

TEST(StateSplit, PutsEachKindInItsPlace) {
  const std::vector<StateVariable> variables = {
      {"trained", VariableKind::kParam, true, value(1)},
      {"frozen", VariableKind::kParam, false, value(2)},
      {"a.lora_A", VariableKind::kAdapter, true, value(3)},
      {"a.lora_A.adam_m", VariableKind::kOptimizer, true, value(4)},
      {"seed", VariableKind::kRng, false, value(5)},
      {"mean", VariableKind::kBatchStat, false, value(6)},
      {"hidden", VariableKind::kIntermediate, false, value(7)},
      {"keys", VariableKind::kCache, false, value(8)},
      {"input_ids", VariableKind::kData, false, value(9)},
  };
  const StateParts parts = split_state(variables);
  EXPECT_EQ(parts.params.size(), 1u);
  EXPECT_EQ(parts.params.at("trained").data<float>()[0], 1);
  EXPECT_TRUE(parts.adapters.contains("a.lora_A"));
  EXPECT_TRUE(parts.optimizer.contains("a.lora_A.adam_m"));
  EXPECT_TRUE(parts.random.contains("seed"));
  EXPECT_TRUE(parts.batch_stats.contains("mean"));
  EXPECT_TRUE(parts.base.empty());
  EXPECT_THAT(parts.dropped, ElementsAre("frozen", "hidden", "keys", "input_ids"));
  EXPECT_EQ(split_state(variables, {.save_base = true}).base.count("frozen"), 1u);
  EXPECT_THAT(error_of([&] {
                split_state({variables[0], variables[0]});
              }),
              HasSubstr("\"trained\" twice"));
}

CheckpointContents contents_of(int64_t step, float x) {
  CheckpointContents contents;
  Manifest& m = contents.manifest;
  m.graft_version = graft_version();
  m.progress.step = step;
  m.progress.tokens = 1234;
  m.progress.position = {3, 17};
  m.progress.interval = {0.1, 0.2, 1e12, 5, 6, 1};
  m.progress.best_evaluation = Evaluation{2, 1.0 / 3, 99};
  m.data = {"abc", 10, 7, true, false};
  m.schedule = {"cosine", 2e-4, 3, 100};
  m.seed = 4294967295;
  m.compute = {"native", "avx2", "f32"};
  contents.tensors.push_back({"optimizer.safetensors", "optimizer", {{"m", value(x)}}});
  contents.texts.push_back({"recipe.resolved.yaml", "model: m\n"});
  return contents;
}

TEST(Checkpoint, ReadsBackWhatWasWritten) {
  TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder / "checkpoints", contents_of(100, 2.5));
  EXPECT_EQ(path.filename(), "step-00000100");
  const Checkpoint read = open_checkpoint(path);
  const Manifest& m = read.manifest;
  EXPECT_EQ(m.progress.step, 100);
  EXPECT_EQ(m.progress.position, (DataPosition{3, 17}));
  EXPECT_EQ(m.progress.interval.loss, 0.1);
  EXPECT_EQ(m.progress.best_evaluation->loss, 1.0 / 3);
  EXPECT_FALSE(m.progress.first_evaluation);
  EXPECT_EQ(m.seed, 4294967295u);
  EXPECT_EQ(m.schedule.total_steps, 100);
  EXPECT_EQ(first_moment(read), 2.5);
  EXPECT_EQ(read.text("recipe.resolved.yaml"), "model: m\n");
  // Again in its place.
  write_checkpoint(folder / "checkpoints", contents_of(100, 3.5));
  EXPECT_EQ(first_moment(open_checkpoint(path)), 3.5);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "checkpoints"), {}), 1);
}

TEST(Checkpoint, APartIsAllOfItsShards) {
  TemporaryFolder folder;
  const fs::path path = folder / "step-00000001";
  fs::create_directory(path);
  CheckpointContents first = contents_of(1, 1), second;
  first.tensors[0].name = "optimizer-00001-of-00002.safetensors";
  second.tensors.push_back(
      {"optimizer-00002-of-00002.safetensors", "optimizer", {{"v", value(7)}}});
  first.manifest.files = write_checkpoint_files(path, first, 0);
  for (CheckpointFile& file : write_checkpoint_files(path, second, 1)) {
    first.manifest.files.push_back(std::move(file));
  }
  write_file_atomically(path / kManifestName, format_manifest(first.manifest));
  const NamedTensors moments = open_checkpoint(path).tensors("optimizer");
  EXPECT_EQ(moments.at("m").data<float>()[0], 1);
  EXPECT_EQ(moments.at("v").data<float>()[0], 7);
}

TEST(Checkpoint, AValueThatIsNotFiniteIsNotSaved) {
  TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { write_checkpoint(folder.path(), contents_of(1, NAN)); }),
              AllOf(HasSubstr("m holds a value"), HasSubstr("not saved")));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Manifest, NamesNoFileElsewhere) {
  for (const char* name : {"../x", "a/b", "", "manifest.json"}) {
    Manifest m = contents_of(1, 1).manifest;
    m.files.push_back({name, "optimizer", 0, 1, "ab"});
    EXPECT_THAT(error_of([&] { parse_manifest(format_manifest(m), "m.json"); }),
                HasSubstr("files.name"));
  }
}

TEST(CheckpointFolder, TakesTheNewestWholeOne) {
  TemporaryFolder folder;
  const CheckpointFolder checkpoints(folder.path());
  for (const int64_t step : {1, 20, 3}) write_checkpoint(folder.path(), contents_of(step, 1));
  fs::create_directory(folder / "step-abc");
  fs::create_directory(folder / ".tmp-step-00000099");
  EXPECT_THAT(checkpoints.steps(), ElementsAre(1, 3, 20));
  EXPECT_THAT(checkpoints.remove_leftovers(), ElementsAre(".tmp-step-00000099"));
  fs::remove(folder / "step-00000020" / "recipe.resolved.yaml");
  std::vector<Error> refused;
  EXPECT_EQ(checkpoints.newest_whole(refused)->manifest.progress.step, 3);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_THAT(refused[0].what(), HasSubstr("recipe.resolved.yaml"));
  EXPECT_EQ(checkpoints.supersede_after(1), 2);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(1));
}

TEST(BackgroundWriter, SavesTheStateOfTheMomentAndRaisesFailures) {
  TemporaryFolder folder;
  BackgroundWriter writer(folder / "checkpoints", 2);
  Tensor state = value(1);
  for (int64_t step = 1; step <= 4; ++step) {
    CheckpointContents contents = contents_of(step, 0);
    contents.tensors[0].tensors[0].second = state;
    state.data<float>()[0] = static_cast<float>(step);
    writer.save(contents, [](CheckpointContents& c) { c.texts.push_back({"late", "text"}); });
    state.data<float>()[0] = -1;  // training goes on
  }
  writer.wait();
  const CheckpointFolder checkpoints(folder / "checkpoints");
  EXPECT_THAT(checkpoints.steps(), ElementsAre(3, 4));
  EXPECT_EQ(first_moment(checkpoints.open(4)), 4);
  EXPECT_EQ(checkpoints.open(4).text("late"), "text");

  writer.save(contents_of(5, NAN), {});
  EXPECT_THROW(writer.wait(), Error);
  writer.save(contents_of(6, 1), {});
  writer.wait();
  EXPECT_THAT(checkpoints.steps(), ElementsAre(4, 6));
}

}  // namespace
}  // namespace graft
