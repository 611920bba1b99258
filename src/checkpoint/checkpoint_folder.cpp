#include "checkpoint/checkpoint_folder.h"

#include <algorithm>

#include "base/disk.h"
#include "base/file.h"

namespace graft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";

// The entries of a folder by name; none where there is no folder.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error && fs::exists(folder)) disk::fail("cannot list the folder", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::optional<int64_t> step_of_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  if (name.empty() || name.size() > 18) return std::nullopt;
  int64_t step = 0;
  for (const char c : name) {
    if (c < '0' || c > '9') return std::nullopt;
    step = step * 10 + (c - '0');
  }
  return step;
}

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(path_)) {
    const std::optional<int64_t> step = step_of_name(name);
    if (step && checkpoint_name(*step) == name) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<std::string> CheckpointFolder::remove_leftovers() const {
  std::vector<std::string> removed;
  for (const std::string& name : names_in(path_)) {
    if (!name.starts_with(kTemporaryPrefix)) continue;
    disk::remove_all(path_ / name);
    removed.push_back(name);
  }
  return removed;
}

std::optional<Checkpoint> CheckpointFolder::newest_whole(std::vector<Error>& refused,
                                                         int64_t until) const {
  std::vector<int64_t> candidates = steps();
  for (auto step = candidates.rbegin(); step != candidates.rend(); ++step) {
    if (*step > until) continue;
    try {
      return open_checkpoint(place_of(*step));
    } catch (const Error& error) {
      refused.push_back(error);
    }
  }
  return std::nullopt;
}

Checkpoint CheckpointFolder::open(int64_t step) const {
  try {
    return open_checkpoint(place_of(step));
  } catch (const Error& error) {
    std::vector<Error> refused;
    const std::optional<Checkpoint> before = newest_whole(refused, step - 1);
    std::string remedy = "no checkpoint before it is whole";
    if (before) {
      remedy = fmt::format("the checkpoint before it is whole: training.resume=\"step {}\" ({})",
                           before->manifest.progress.step, before->folder.string());
    }
    throw Error(error.problem(), error.where(), remedy);
  }
}

void CheckpointFolder::keep_newest(int64_t count) const {
  const std::vector<int64_t> all = steps();
  for (size_t i = 0; i + static_cast<size_t>(count) < all.size(); ++i) {
    // Renamed first, so that one half removed is never taken for a checkpoint.
    const fs::path going = path_ / (kTemporaryPrefix + checkpoint_name(all[i]));
    disk::remove_all(going);
    disk::rename(place_of(all[i]), going);
    disk::remove_all(going);
  }
}

int64_t CheckpointFolder::supersede_after(int64_t step) const {
  int64_t count = 0;
  for (const int64_t later : steps()) {
    if (later <= step) continue;
    const fs::path aside = path_ / ("superseded-" + checkpoint_name(later));
    disk::remove_all(aside);
    disk::rename(place_of(later), aside);
    ++count;
  }
  if (count > 0) disk::sync_folder(path_);
  return count;
}

Checkpoint open_checkpoint_or_run(const fs::path& path) {
  if (!fs::exists(path)) throw Error("there is no such folder", path.string());
  // Without a trailing slash, so that the folder has a name.
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  if (const auto step = step_of_name(folder.filename().string())) {
    return CheckpointFolder(disk::folder_of(folder)).open(*step);
  }
  if (fs::exists(folder / kManifestName)) return open_checkpoint(folder);
  std::vector<Error> refused;
  std::optional<Checkpoint> newest = CheckpointFolder::of_run(folder).newest_whole(refused);
  if (newest) return *std::move(newest);
  if (!refused.empty()) throw refused.front();
  throw Error("the folder holds no checkpoint", folder.string(),
              "give a checkpoint (checkpoints/step-...) or the folder of a run");
}

}  // namespace graft
