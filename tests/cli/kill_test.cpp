// kill -9 at any instant, and the signals that ask a run to stop.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <random>
#include <thread>

#include "checkpoint/checkpoint_folder.h"
#include "support/tiny_run.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::comparable_metrics;
using ::testing::HasSubstr;
using testing::run_program;
using testing::slurp;
using testing::tensor_files;
using testing::TinyRun;
using Clock = std::chrono::steady_clock;

std::string write_recipe(const TinyRun& tiny, const std::string& name,
                         const std::vector<std::string>& more) {
  Recipe recipe = parse_recipe("", "test", tiny.settings(name, more));
  resolve_recipe(recipe, "2026-01-15");
  const fs::path path = tiny / (name + ".yaml");
  write_file_atomically(path, format_recipe(recipe));
  return path.string();
}

// graft train in a process of its own.
class TrainingProcess {
 public:
  TrainingProcess(const std::string& recipe, const fs::path& log) {
    child_ = ::fork();
    if (child_ != 0) return;
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    ::execl(GRAFT_BINARY, GRAFT_BINARY, "train", recipe.c_str(), nullptr);
    ::_exit(127);
  }
  bool running() {
    if (ended_) return false;
    ended_ = ::waitpid(child_, &status_, WNOHANG) == child_;
    return !ended_;
  }
  void signal(int number) const { ::kill(child_, number); }
  int wait() {
    if (!ended_) ::waitpid(child_, &status_, 0);
    ended_ = true;
    return status_;
  }

 private:
  pid_t child_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

bool holds_leftover(const fs::path& checkpoints) {
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with(kTemporaryPrefix)) return true;
  }
  return false;
}

// 40 kills, in as many runs as that takes: some at random instants, some as soon as a save is seen.
TEST(Kill, AtFortyInstantsTheRunComesToTheSameEnd) {
  TinyRun tiny;
  const std::vector<std::string> settings = {"training.max_steps=24", "training.save_steps=2",
                                             "training.save_total_limit=3",
                                             "lora.target_modules=[q_proj, down_proj]"};
  const Clock::time_point begin = Clock::now();
  ASSERT_EQ(TrainingProcess(write_recipe(tiny, "whole", settings), tiny / "log").wait(), 0)
      << slurp(tiny / "log");
  const auto duration = Clock::now() - begin;
  const auto files = tensor_files(tiny / "whole");
  const auto metrics = comparable_metrics(tiny / "whole");

  std::mt19937 random(7);
  int kills = 0, during_saves = 0;
  for (int chain = 0; kills < 40; ++chain) {
    const std::string name = "run" + std::to_string(chain);
    const std::string recipe = write_recipe(tiny, name, settings);
    const fs::path checkpoints = tiny / name / "checkpoints";
    for (bool ended = false; !ended;) {
      const auto instant = std::chrono::duration_cast<std::chrono::microseconds>(duration) *
                           std::uniform_real_distribution<>(0.1, 0.8)(random);
      const bool waits_for_save = kills % 3 == 0;
      const Clock::time_point start = Clock::now();
      TrainingProcess process(recipe, tiny / "log");
      while (process.running() && kills < 40) {
        const bool due = waits_for_save
                             ? Clock::now() - start > instant / 2 && holds_leftover(checkpoints)
                             : Clock::now() - start > instant;
        if (due) process.signal(SIGKILL);
        else std::this_thread::sleep_for(200us);
      }
      const int status = process.wait();
      ended = WIFEXITED(status);
      if (ended) {
        ASSERT_EQ(WEXITSTATUS(status), 0) << slurp(tiny / "log");
      } else {
        ++kills;
        if (holds_leftover(checkpoints)) ++during_saves;
      }
    }
    EXPECT_TRUE(tensor_files(tiny / name) == files) << name;
    EXPECT_EQ(comparable_metrics(tiny / name), metrics) << name;
    EXPECT_FALSE(holds_leftover(checkpoints));
    EXPECT_FALSE(holds_leftover(tiny / name));
    fs::remove_all(tiny / name);
  }
  EXPECT_GT(during_saves, 3);
}

TEST(Signal, StopsAfterTheStepAndTheRunGoesOn) {
  TinyRun tiny;
  // Long enough to be stopped on its way, whatever the machine.
  const std::vector<std::string> settings = {"training.max_steps=400", "training.eval_steps=0",
                                             "lora.target_modules=[q_proj]"};
  ASSERT_EQ(TrainingProcess(write_recipe(tiny, "whole", settings), tiny / "log").wait(), 0);
  for (const int number : {SIGTERM, SIGINT}) {
    const std::string name = "run" + std::to_string(number);
    const std::string recipe = write_recipe(tiny, name, settings);
    TrainingProcess process(recipe, tiny / "log");
    const fs::path metrics = tiny / name / "metrics.jsonl";
    while (process.running() &&
           (!fs::exists(metrics) || comparable_metrics(tiny / name).size() < 3)) {
      std::this_thread::sleep_for(200us);
    }
    process.signal(number);
    const int status = process.wait();
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_THAT(slurp(tiny / "log"),
                HasSubstr(number == SIGTERM ? "stopped by SIGTERM" : "stopped by SIGINT"));
    EXPECT_EQ(CheckpointFolder::of_run(tiny / name).steps().size(), 1u);
    EXPECT_FALSE(fs::exists(tiny / name / "adapter"));
    ASSERT_EQ(TrainingProcess(recipe, tiny / "log").wait(), 0) << slurp(tiny / "log");
    EXPECT_TRUE(slurp(tiny / name / "adapter/adapter_model.safetensors") ==
                slurp(tiny / "whole/adapter/adapter_model.safetensors"));
    EXPECT_EQ(comparable_metrics(tiny / name), comparable_metrics(tiny / "whole"));
  }
}

TEST(Signal, ASecondOneEndsAtOnce) {
  TinyRun tiny;
  const std::string recipe = write_recipe(tiny, "run", {"training.max_steps=100000"});
  TrainingProcess process(recipe, tiny / "log");
  while (process.running() && !fs::exists(tiny / "run/metrics.jsonl")) {
    std::this_thread::sleep_for(1ms);
  }
  // Stopped, so that both are there before it goes on.
  process.signal(SIGSTOP);
  process.signal(SIGINT);
  process.signal(SIGTERM);
  process.signal(SIGCONT);
  const int status = process.wait();
  EXPECT_TRUE(WIFSIGNALED(status));
}

// In processes of their own: the choice holds for a process.
TEST(InstructionSet, IsPinnedRecordedAndToldWhereItChanges) {
  TinyRun tiny;
  const std::string best = write_recipe(tiny, "run", {"training.save_steps=4"});
  const auto train = [&](const std::string& setting) {
    return run_program({GRAFT_BINARY, "train", best, setting});
  };
  const auto pinned = train("compute.isa=sse4");
  ASSERT_EQ(pinned.exit_code, 0) << pinned.err;
  const Checkpoint checkpoint = CheckpointFolder::of_run(tiny / "run").open(4);
  EXPECT_EQ(checkpoint.manifest.compute.instruction_set, "sse4");
  const auto files = tensor_files(tiny / "run");
  for (const char* later : {"step-00000008", "step-00000011"}) {
    fs::remove_all(tiny / "run/checkpoints" / later);
  }
  const auto other = train("compute.isa=auto");
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("the checkpoint was computed with sse4"));
  fs::remove_all(tiny / "run/checkpoints/step-00000008");
  fs::remove_all(tiny / "run/checkpoints/step-00000011");
  EXPECT_EQ(train("compute.isa=sse4").exit_code, 0);
  EXPECT_TRUE(tensor_files(tiny / "run") == files);
}

TEST(Checkpoint, VerifyNamesTheFileAndOffersTheOneBefore) {
  TinyRun tiny;
  tiny.train("run", {"training.save_steps=4"});
  const std::string newest = (tiny / "run/checkpoints/step-00000011").string();
  EXPECT_EQ(run_program({GRAFT_BINARY, "checkpoint", "verify", newest}).exit_code, 0);
  const auto all =
      run_program({GRAFT_BINARY, "checkpoint", "verify", (tiny / "run").string(), "--json"});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(all.out).at("checkpoints").size(), 3u);
  fs::resize_file(newest + "/optimizer.safetensors", 10);
  for (const std::string& path : {newest, (tiny / "run").string()}) {
    const auto damaged = run_program({GRAFT_BINARY, "checkpoint", "verify", path});
    EXPECT_EQ(damaged.exit_code, 1);
    EXPECT_THAT(damaged.last_error_line(), HasSubstr("optimizer.safetensors"));
    EXPECT_THAT(damaged.last_error_line(), HasSubstr("step-00000008"));
  }
}

TEST(Checkpoint, BenchGivesFigures) {
  TinyRun tiny;
  tiny.train("run");
  const auto result = run_program(
      {GRAFT_BINARY, "checkpoint", "bench", (tiny / "run").string(), "--repeats", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto figures = nlohmann::json::parse(result.out);
  for (const char* name : {"bytes", "save_seconds", "restore_seconds", "disk_write_seconds"}) {
    EXPECT_GT(figures.at(name), 0) << name;
  }
  EXPECT_FALSE(holds_leftover(tiny / "run/checkpoints"));
}

TEST(Inspect, ARunShowsWhereItStands) {
  TinyRun tiny;
  tiny.train_until(7, "run", {"training.save_steps=4"});
  const auto text = run_program({GRAFT_BINARY, "inspect", (tiny / "run").string()});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("7 of 11"));
  EXPECT_THAT(text.out, HasSubstr("eval_loss"));
  const auto json = run_program({GRAFT_BINARY, "inspect", (tiny / "run").string(), "--json"});
  const auto run = nlohmann::json::parse(json.out);
  EXPECT_EQ(run.at("checkpoints").size(), 2u);
  EXPECT_EQ(run.at("finished"), false);
  EXPECT_EQ(run.at("total_steps"), 11);
}

}  // namespace
}  // namespace graft
