#pragma once
// A file that grows at its end, a whole record at a time: logs that others follow while they are
// written.
//
//   AppendFile log("runs/first/metrics.jsonl", AppendFile::Begin::kAnew);
//   log.append("{...}\n");

#include <filesystem>
#include <string_view>

#include "base/disk.h"

namespace graft {

class AppendFile {
 public:
  enum class Begin : unsigned char { kAnew, kContinue };
  AppendFile(std::filesystem::path path, Begin begin);  // raises Error naming the path

  void append(std::string_view record);  // there for readers when the call returns
  void sync();                           // on the disk when the call returns
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  disk::Descriptor fd_;
};

}  // namespace graft
