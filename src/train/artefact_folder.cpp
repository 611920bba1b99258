#include "train/artefact_folder.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"

namespace graft {
namespace {

namespace fs = std::filesystem;

// Weights in one file and in shards are found by the same readers: both must not be there at once.
bool is_weights(const std::string& name) {
  return name.starts_with("model") &&
         (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
}

}  // namespace

StagedFolder::StagedFolder(fs::path target) : target_(std::move(target)) {
  // "a/b/" names b too.
  if (target_.filename().empty()) target_ = target_.parent_path();
  if (target_.filename().empty()) throw Error("is not a folder's name", target_.string());
  const fs::path parent = disk::folder_of(target_);
  make_directories(parent);
  staging_ = parent / fmt::format(".tmp-{}-{}", target_.filename().string(), ::getpid());
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
  make_directories(staging_);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

std::vector<std::string> StagedFolder::files() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(staging_)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void StagedFolder::publish() {
  std::error_code error;
  if (fs::exists(target_) && !fs::is_directory(target_)) {
    throw Error("is a file, not a folder", target_.string());
  }
  if (fs::exists(target_) && fs::is_empty(target_)) fs::remove(target_, error);
  if (!fs::exists(target_)) {
    disk::rename(staging_, target_);
    staging_.clear();
    return;
  }
  const std::vector<std::string> names = files();
  const bool has_weights = std::any_of(names.begin(), names.end(), is_weights);
  if (has_weights) {
    for (const auto& entry : fs::directory_iterator(target_)) {
      const std::string name = entry.path().filename().string();
      const bool replaced = std::find(names.begin(), names.end(), name) != names.end();
      if (is_weights(name) && !replaced) fs::remove(entry.path(), error);
    }
  }
  for (const std::string& name : names) disk::rename(staging_ / name, target_ / name);
}

}  // namespace graft
