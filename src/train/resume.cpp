#include "train/resume.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/disk.h"
#include "base/file.h"
#include "cpu/kernel.h"
#include "formats/json.h"
#include "train/recipe_difference.h"

namespace graft {
namespace {

namespace fs = std::filesystem;

// "step 100", "step-100" and "step-00000100" to 100.
std::optional<int64_t> step_named(std::string text) {
  if (text.starts_with("step ")) text[4] = '-';
  return step_of_name(text);
}

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

void remove_leftovers(const fs::path& output, ResumePlan& plan) {
  std::vector<std::string> removed = CheckpointFolder::of_run(output).remove_leftovers();
  std::vector<fs::path> others;
  std::error_code error;
  for (fs::directory_iterator it(output, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool atomic = name.starts_with(".") && name.ends_with(".tmp");  // of base/file.h
    if (atomic || name.starts_with(kTemporaryPrefix) || name.starts_with(".rehearsal")) {
      others.push_back(it->path());
    }
  }
  for (const fs::path& path : others) {
    disk::remove_all(path);
    removed.push_back(path.filename().string());
  }
  if (!removed.empty()) {
    plan.notes.push_back(
        fmt::format("removed what an interrupted run left: {}", fmt::join(removed, ", ")));
  }
}

// What the recipe leaves open and the first start settled.
void take_over(const Recipe& was, Recipe& is) {
  if (!is.given("data.template_date")) is.data.template_date = was.data.template_date;
  if (is.init_adapter.empty() && is.training.init_state.empty()) return;
  // The adapter that the run began from decided these.
  if (!is.given("lora.r")) is.lora.r = was.lora.r;
  if (!is.given("lora.lora_alpha")) is.lora.lora_alpha = was.lora.lora_alpha;
  if (!is.given("lora.use_rslora")) is.lora.use_rslora = was.lora.use_rslora;
  if (!is.given("lora.target_modules")) is.lora.target_modules = was.lora.target_modules;
  if (!is.given("lora.exclude_modules")) is.lora.exclude_modules = was.lora.exclude_modules;
  if (!is.given("lora.layers_to_transform")) {
    is.lora.layers_to_transform = was.lora.layers_to_transform;
  }
  if (!is.given("lora.rank_pattern")) is.lora.rank_pattern = was.lora.rank_pattern;
  if (!is.given("lora.alpha_pattern")) is.lora.alpha_pattern = was.lora.alpha_pattern;
}

void compare_recipes(const Checkpoint& checkpoint, Recipe& recipe, bool force, ResumePlan& plan) {
  const std::string name = (checkpoint.folder / "recipe.resolved.yaml").string();
  const Recipe was = parse_recipe(checkpoint.text("recipe.resolved.yaml"), name);
  take_over(was, recipe);
  Recipe is = recipe;
  resolve_recipe(is, is.data.template_date);
  std::string all;
  bool refused = false;
  for (const RecipeDifference& d : recipe_differences(was, is)) {
    all += (all.empty() ? "" : "; ") + describe(d);
    if (d.allowed) plan.notes.push_back(describe(d));
    else if (force) plan.warnings.push_back(describe(d) + ", forced");
    else refused = true;
  }
  if (refused) {
    throw Error("the recipe is not the one that this run began with: " + all,
                checkpoint.folder.string(),
                "use another output_dir; or go on all the same with --force-resume; or begin anew "
                "with training.resume=never training.overwrite_output_dir=true");
  }
}

// Whether the checkpoint is the last of a run that also wrote its result.
bool is_finished(const Checkpoint& checkpoint, const Recipe& recipe) {
  const fs::path summary = fs::path(recipe.output_dir) / "summary.json";
  if (!fs::exists(summary)) return false;
  const Recipe was = parse_recipe(checkpoint.text("recipe.resolved.yaml"), "recipe");
  if (was.training.max_steps != recipe.training.max_steps ||
      was.training.num_train_epochs != recipe.training.num_train_epochs) {
    return false;
  }
  const nlohmann::json document = read_json_file(summary);
  const int64_t step = checkpoint.manifest.progress.step;
  return step >= checkpoint.manifest.schedule.total_steps &&
         document.value("steps", int64_t{-1}) == step &&
         fs::exists(fs::path(recipe.output_dir) / document.value("result", std::string("?")));
}

void begin_never(const fs::path& output, const Recipe& recipe, ResumePlan& plan) {
  const std::string holding = run_holding(output);
  if (holding.empty()) return;
  if (!recipe.training.overwrite_output_dir) {
    throw Error(fmt::format("training.resume is never, and the folder holds a run ({})", holding),
                output.string(),
                "choose another output_dir, or remove the run with "
                "training.overwrite_output_dir=true");
  }
  plan.overwrite = true;
}

void tell_instruction_set(const Checkpoint& checkpoint, ResumePlan& plan) {
  const std::string& was = checkpoint.manifest.compute.instruction_set;
  if (was == cpu::instruction_set()) return;
  plan.warnings.push_back(
      fmt::format("the checkpoint was computed with {}, this machine uses {}: the run goes on "
                  "equal in meaning, "
                  "not bit for bit (compute.isa={} where both machines have it)",
                  was, cpu::instruction_set(), was));
}

}  // namespace

std::string run_holding(const fs::path& output) {
  if (!CheckpointFolder::of_run(output).steps().empty()) return "checkpoints";
  for (const char* name : {"metrics.jsonl", "recipe.resolved.yaml", "adapter", "model"}) {
    if (fs::exists(output / name)) return name;
  }
  return "";
}

void remove_run(const fs::path& output) {
  // What says that the run is whole goes first.
  for (const char* name : {"summary.json", "checkpoints", "metrics.jsonl", "adapter", "model",
                           "export", "recipe.resolved.yaml"}) {
    disk::remove_all(output / name);
  }
}

ResumePlan plan_resume(Recipe& recipe, bool force) {
  const fs::path output = recipe.output_dir;
  const CheckpointFolder own = CheckpointFolder::of_run(output);
  const std::string& resume = recipe.training.resume;
  ResumePlan plan;
  plan.forced = force;
  remove_leftovers(output, plan);
  if (resume == "never") {
    begin_never(output, recipe, plan);
    return plan;
  }
  if (resume == "auto") {
    std::vector<Error> refused;
    plan.checkpoint = own.newest_whole(refused);
    for (const Error& error : refused) {
      plan.warnings.push_back(fmt::format("a checkpoint is refused: {}", error.what()));
    }
  } else if (const auto step = step_named(resume)) {
    plan.checkpoint = own.open(*step);
  } else {
    plan.checkpoint = open_checkpoint_or_run(resume);
    plan.elsewhere = !same_folder(plan.checkpoint->folder.parent_path(), own.path());
    if (plan.elsewhere && !own.steps().empty()) {
      if (!recipe.training.overwrite_output_dir) {
        throw Error("training.resume names another run, and this folder holds one", output.string(),
                    "go on with it by training.resume=auto, choose another output_dir, or remove "
                    "it with training.overwrite_output_dir=true");
      }
      plan.overwrite = true;
    }
  }
  if (!plan.checkpoint) return plan;
  compare_recipes(*plan.checkpoint, recipe, force, plan);
  plan.finished = !plan.elsewhere && is_finished(*plan.checkpoint, recipe);
  if (!plan.finished) tell_instruction_set(*plan.checkpoint, plan);
  return plan;
}

RunLock::RunLock(const fs::path& output) : output_(output), created_(!fs::exists(output)) {
  make_directories(output);
  fd_ = disk::Descriptor(disk::open_retrying(output.c_str(), O_RDONLY | O_DIRECTORY));
  if (fd_.get() < 0) disk::fail("cannot open the folder", output, errno);
  // Other failures mean a file system without locks.
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error("another graft is training into this folder", output.string(),
                "wait for it, or choose another output_dir");
  }
}

RunLock::~RunLock() {
  std::error_code ignored;
  if (created_) fs::remove(output_, ignored);  // which fails unless it is empty
}

}  // namespace graft
