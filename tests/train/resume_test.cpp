// A run that goes on from a checkpoint equals the one that was never interrupted.

#include "train/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/tiny_run.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::comparable_metrics;
using testing::error_of;
using ::testing::HasSubstr;
using testing::slurp;
using testing::tensor_files;
using testing::TinyRun;
using Settings = std::vector<std::string>;

// Each file of `expected` is in `found` with the same bytes.
void expect_same_tensors(const fs::path& expected, const fs::path& found) {
  const auto reference = tensor_files(expected), files = tensor_files(found);
  EXPECT_FALSE(reference.empty());
  for (const auto& [name, bytes] : reference) {
    const auto it = files.find(name);
    ASSERT_NE(it, files.end()) << name;
    EXPECT_TRUE(it->second == bytes) << name << " differs";
  }
}

void expect_same_run(const fs::path& expected, const fs::path& found) {
  expect_same_tensors(expected, found);
  EXPECT_EQ(comparable_metrics(found), comparable_metrics(expected));
}

void flip_byte(const fs::path& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char c = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(c ^ 1));
}

// What two halves differ in, each time: the second half's settings, and those of both.
TEST(Resume, EqualsTheUninterruptedRun) {
  struct Case {
    const char* name;
    Settings both, second;
  };
  const std::vector<Case> cases = {
      {"plain", {}, {}},
      {"threads", {}, {"compute.threads=2"}},
      {"unrolled", {}, {"scan_layers=false"}},
      {"remat", {}, {"training.remat=full"}},
      {"packing", {"data.packing=true", "training.max_steps=7"}, {}},
      {"full", {"training.method=full"}, {"compute.threads=2"}},
      {"statistics", {"training.stats_steps=2"}, {}},
      {"saved on the way", {"training.save_steps=5"}, {"training.save_total_limit=9"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    TinyRun tiny;
    Settings both = c.both;
    if (std::string(c.name) == "full") {
      // An adapter's options do not belong to a full run.
      both.insert(both.end(), {"lora.r=", "lora.lora_dropout="});
    }
    tiny.train("whole", both);
    for (const int64_t stop : {1, 5}) {
      const std::string part = "part" + std::to_string(stop);
      EXPECT_EQ(tiny.train_until(stop, part, both).steps, stop);
      EXPECT_FALSE(fs::exists(tiny / part / "adapter"));
      Settings second = both;
      second.insert(second.end(), c.second.begin(), c.second.end());
      tiny.train(part, second);
      expect_same_run(tiny / "whole", tiny / part);
    }
  }
}

// Four rows in a step: one by one, two by two, at once; each way for five steps, another from
// there.
TEST(Resume, AccumulationOfAnotherSplitIsEqualInMeaning) {
  const auto split = [](int64_t batch) -> Settings {
    return {"lora.lora_dropout=0",  // whose numbers go by the row in the step
            "training.per_device_batch_size=" + std::to_string(batch),
            "training.gradient_accumulation_steps=" + std::to_string(4 / batch)};
  };
  TinyRun tiny;
  tiny.train("whole", split(1));
  const auto expected = comparable_metrics(tiny / "whole");
  for (const auto& [first, second] : {std::pair{2, 4}, std::pair{1, 4}, std::pair{4, 1}}) {
    const std::string part = std::to_string(first) + " to " + std::to_string(second);
    SCOPED_TRACE(part);
    tiny.train_until(5, part, split(first));
    tiny.train(part, split(second));
    const auto found = comparable_metrics(tiny / part);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const char* key = found[i].contains("loss") ? "loss" : "eval_loss";
      EXPECT_EQ(found[i]["step"], expected[i]["step"]);
      EXPECT_NEAR(found[i][key].get<double>(), expected[i][key].get<double>(), 1e-5);
    }
  }
}

TEST(Resume, OfAQuantizedBaseEqualsTheUninterruptedRun) {
  for (const char* scheme : {"nf4", "int8"}) {
    SCOPED_TRACE(scheme);
    TinyRun tiny;
    const Settings quantized = {std::string("quantization.scheme=") + scheme};
    tiny.train("whole", quantized);
    tiny.train_until(5, "part", quantized);
    // The adapter learned what this base lacks; it is not another's.
    const std::string other = scheme == std::string("nf4") ? "int8" : "nf4";
    EXPECT_THAT(error_of([&] { tiny.train("part", {"quantization.scheme=" + other}); }),
                AllOf(HasSubstr("quantization.scheme was " + std::string(scheme)),
                      HasSubstr("is " + other), HasSubstr("(refused)")));
    EXPECT_THAT(error_of([&] { tiny.train("part"); }), HasSubstr("quantization.scheme was"));
    tiny.train("part", quantized);
    expect_same_run(tiny / "whole", tiny / "part");
  }
}

TEST(Resume, AFinishedRunSaysSoAndChangesNothing) {
  TinyRun tiny;
  tiny.train("run");
  const std::string adapter = slurp(tiny / "run" / "adapter" / "adapter_model.safetensors");
  const std::string metrics = slurp(tiny / "run" / "metrics.jsonl");
  EXPECT_EQ(tiny.train("run").steps, 11);
  EXPECT_EQ(slurp(tiny / "run" / "metrics.jsonl"), metrics);
  // A result that is gone is made again from the last checkpoint.
  fs::remove_all(tiny / "run" / "adapter");
  tiny.train("run");
  EXPECT_TRUE(slurp(tiny / "run" / "adapter" / "adapter_model.safetensors") == adapter);
  // More steps go on from there.
  EXPECT_EQ(tiny.train("run", {"training.max_steps=13"}).steps, 13);
  EXPECT_THAT(error_of([&] { tiny.train("run"); }), HasSubstr("asks for 11 steps"));
}

TEST(Resume, ADamagedCheckpointIsRefusedByName) {
  TinyRun tiny;
  tiny.train("run", {"training.save_steps=4"});
  const fs::path checkpoints = tiny / "run" / "checkpoints";
  for (const auto& entry : fs::directory_iterator(checkpoints / "step-00000011")) {
    const std::string name = entry.path().filename().string();
    const auto size = static_cast<int64_t>(fs::file_size(entry.path()));
    for (const int64_t at : {int64_t{0}, size / 2, size - 1}) {
      flip_byte(entry.path(), at);
      const std::string error = error_of([&] { CheckpointFolder(checkpoints).open(11); });
      EXPECT_THAT(error, AllOf(HasSubstr(name), HasSubstr("training.resume=\"step 8\""))) << at;
      flip_byte(entry.path(), at);
    }
    const std::string bytes = slurp(entry.path());
    fs::resize_file(entry.path(), static_cast<uintmax_t>(size) - 1);
    EXPECT_THAT(error_of([&] { CheckpointFolder(checkpoints).open(11); }), HasSubstr(name));
    fs::remove(entry.path());
    EXPECT_THAT(error_of([&] { CheckpointFolder(checkpoints).open(11); }), HasSubstr(name));
    write_file_atomically(entry.path(), bytes);
  }
  CheckpointFolder(checkpoints).open(11);
  // A run goes on from the one before it, and comes to the same end.
  const auto metrics = comparable_metrics(tiny / "run");
  const auto files = tensor_files(tiny / "run" / "checkpoints" / "step-00000011");
  flip_byte(checkpoints / "step-00000011" / "optimizer.safetensors", 300);
  fs::remove_all(tiny / "run" / "adapter");
  tiny.train("run", {"training.save_steps=4"});
  EXPECT_EQ(comparable_metrics(tiny / "run"), metrics);
  EXPECT_TRUE(tensor_files(tiny / "run" / "checkpoints" / "step-00000011") == files);
}

TEST(Resume, ARecipeThatDiffersIsRefusedByKey) {
  TinyRun tiny;
  tiny.train_until(5, "run");
  testing::write_tiny_rows(tiny / "other.jsonl", 23, 9);
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"lora.r", "lora.r=4"},
      {"training.seed", "training.seed=7"},
      {"lora.target_modules", "lora.target_modules=[q_proj]"},
      {"data.train", "data.train=" + (tiny / "other.jsonl").string()},
      {"training.learning_rate", "training.learning_rate=0.02"},
      {"training.per_device_batch_size", "training.per_device_batch_size=3"},
      {"data.packing", "data.packing=true"},
  };
  for (const auto& [key, setting] : refused) {
    const std::string error = error_of([&, setting = setting] {
      tiny.train("run", {setting, "training.max_steps=12"});
    });
    EXPECT_THAT(error, HasSubstr(key + " was "));
    EXPECT_THAT(error, HasSubstr("(refused)"));
    EXPECT_THAT(error, HasSubstr("training.max_steps was 11, is 12 (allowed"));
    EXPECT_THAT(error, HasSubstr("--force-resume"));
  }
  TrainingControl force;
  force.force_resume = true;
  EXPECT_EQ(tiny.train("run", {"training.learning_rate=0.02"}, force).steps, 11);
}

TEST(Resume, OtherRowsUnderTheSameNameAreRefused) {
  TinyRun tiny;
  tiny.train_until(5, "run");
  testing::write_tiny_rows(tiny / "train.jsonl", 23, 9);
  EXPECT_THAT(error_of([&] { tiny.train("run"); }), HasSubstr("data.train"));
}

TEST(Resume, AnotherBaseIsRefusedNamingTheTensor) {
  TinyRun tiny;
  tiny.train_until(5, "run");
  const fs::path weights = tiny / "model" / "model.safetensors";
  const auto size = static_cast<int64_t>(fs::file_size(weights));
  flip_byte(weights, size - 4);
  const std::string last = SafetensorsFile::open(weights).names().back();
  EXPECT_THAT(error_of([&] { tiny.train("run"); }),
              AllOf(HasSubstr(last), HasSubstr("other values")));
  flip_byte(weights, size - 4);
  testing::write_tiny_model(tiny / "model", testing::tiny_config(2));
  EXPECT_THAT(error_of([&] { tiny.train("run"); }),
              AllOf(HasSubstr("model.layers.2."), HasSubstr("is missing")));
}

TEST(Resume, NeverIsRefusedWhereThereIsARun) {
  TinyRun tiny;
  tiny.train("run");
  EXPECT_THAT(error_of([&] { tiny.train("run", {"training.resume=never"}); }),
              HasSubstr("overwrite_output_dir"));
  const auto files = tensor_files(tiny / "run");
  tiny.train("run", {"training.resume=never", "training.overwrite_output_dir=true",
                     "training.save_steps=4"});
  EXPECT_TRUE(fs::exists(tiny / "run" / "checkpoints" / "step-00000008"));
  expect_same_tensors(tiny / "run", tiny / "run");
  EXPECT_TRUE(tensor_files(tiny / "run").at("adapter/adapter_model.safetensors") ==
              files.at("adapter/adapter_model.safetensors"));
}

TEST(Resume, GoesBackToAStepAndToAnotherRun) {
  TinyRun tiny;
  const Settings saves = {"training.save_steps=4"};
  tiny.train("run", saves);
  const auto files = tensor_files(tiny / "run");
  const auto metrics = comparable_metrics(tiny / "run");
  tiny.train("run", {"training.save_steps=4", "training.resume=step 4"});
  EXPECT_EQ(comparable_metrics(tiny / "run"), metrics);
  EXPECT_TRUE(fs::exists(tiny / "run" / "checkpoints" / "superseded-step-00000008"));
  for (const auto& [name, bytes] : files) {
    EXPECT_TRUE(tensor_files(tiny / "run").at(name) == bytes) << name;
  }
  // The first run's folder, or one of its checkpoints.
  tiny.train("second", {"training.save_steps=4",
                        "training.resume=" + (tiny / "run/checkpoints/step-00000008").string()});
  EXPECT_EQ(comparable_metrics(tiny / "second"), metrics);
  EXPECT_TRUE(slurp(tiny / "second/adapter/adapter_model.safetensors") ==
              files.at("adapter/adapter_model.safetensors"));
  EXPECT_THAT(
      error_of([&] { tiny.train("second", {"training.resume=" + (tiny / "run").string()}); }),
      HasSubstr("this folder holds one"));
}

TEST(Resume, InitialStateIsWeightsAndOptimiserAtStepZero) {
  TinyRun tiny;
  tiny.train("first");
  tiny.train("second", {"training.init_state=" + (tiny / "first").string(), "lora.r="});
  const auto first = comparable_metrics(tiny / "first"),
             second = comparable_metrics(tiny / "second");
  // It begins where the first ended, and with its own step and place in the data.
  EXPECT_EQ(second.front()["eval_loss"], first.back()["eval_loss"]);
  EXPECT_EQ(second[1]["step"], 3);
  // A resumed run begins from its checkpoint, not from there once more.
  tiny.train_until(5, "part", {"training.init_state=" + (tiny / "first").string(), "lora.r="});
  tiny.train("part", {"training.init_state=" + (tiny / "first").string(), "lora.r="});
  expect_same_run(tiny / "second", tiny / "part");
  EXPECT_THAT(slurp(tiny / "part" / "audit.json"), HasSubstr("step 5 of the checkpoint"));
  // The adapter alone is another thing: its moments begin at zero.
  tiny.train("third", {"lora.init_adapter=" + (tiny / "first/adapter").string(), "lora.r="});
  const auto third = comparable_metrics(tiny / "third");
  EXPECT_EQ(third.front()["eval_loss"], first.back()["eval_loss"]);
  EXPECT_NE(third.back()["eval_loss"], second.back()["eval_loss"]);
  EXPECT_THAT(
      error_of([&] {
        tiny.train("fourth", {"training.init_state=" + (tiny / "first").string(), "lora.r=8"});
      }),
      AllOf(HasSubstr("lora.r is 8"), HasSubstr("and 3 in")));
}

TEST(Resume, AnAdapterThatLearnedNothingIsNoResult) {
  TinyRun tiny;
  const std::string error = error_of([&] {
    tiny.train("run", {"training.max_steps=1", "training.warmup_steps=1"});
  });
  EXPECT_THAT(error, HasSubstr("every lora_B is still zero"));
  EXPECT_FALSE(fs::exists(tiny / "run" / "adapter"));
}

TEST(Resume, AFolderBelongsToOneProcess) {
  TinyRun tiny;
  {
    const RunLock lock(tiny / "run");
    EXPECT_THAT(error_of([&] { tiny.train("run"); }), HasSubstr("another graft is training"));
  }
  EXPECT_FALSE(fs::exists(tiny / "run"));  // nothing came of it
  EXPECT_EQ(tiny.train("run").steps, 11);
}

TEST(Resume, OldCheckpointsGo) {
  TinyRun tiny;
  tiny.train("run", {"training.save_steps=2", "training.save_total_limit=2"});
  EXPECT_EQ(CheckpointFolder::of_run(tiny / "run").steps(), (std::vector<int64_t>{10, 11}));
}

TEST(Resume, TheBaseIsSavedWhereAskedFor) {
  TinyRun tiny;
  tiny.train("run", {"training.save_base=true", "training.save_steps=8"});
  const Checkpoint checkpoint = CheckpointFolder::of_run(tiny / "run").open(8);
  EXPECT_EQ(checkpoint.tensors("base").size(),
            SafetensorsFile::open(tiny / "model").names().size());
  const Checkpoint last = CheckpointFolder::of_run(tiny / "run").open(11);
  EXPECT_NE(last.manifest.find("base.safetensors"), nullptr);
}

}  // namespace
}  // namespace graft
