#pragma once
// A folder that is filled aside and appears under its name only when it is whole and checked.
//
//   StagedFolder staged("runs/ada/export/hf");
//   write_into(staged.path());
//   check(staged.path());
//   staged.publish();  // without it nothing is left behind

#include <filesystem>
#include <string>
#include <vector>

namespace graft {

class StagedFolder {
 public:
  explicit StagedFolder(std::filesystem::path target);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return staging_; }
  std::vector<std::string> files() const;  // names, sorted

  // By one rename where the target is not there or empty; else file by file, those of the same
  // names replaced and weights of an earlier artefact removed.
  void publish();

 private:
  std::filesystem::path target_, staging_;
};

}  // namespace graft
