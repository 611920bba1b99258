#pragma once
// Writes checkpoints in a thread of low priority while training goes on.
//
//   BackgroundWriter writer("runs/a/checkpoints", 3);
//   writer.save(contents, complete);   // copies the tensors, then returns
//   writer.raise_failure();            // what a save raised, on the thread that trains
//   writer.wait();                     // until the last one is on the disk
//
// What is trained is copied before save returns; the copy's memory is used again by the next save.
// While one is being written a second has to wait.

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "checkpoint/checkpoint.h"

namespace graft {

class BackgroundWriter {
 public:
  // Adds what takes long to know (the base's checksums) to the contents, in the writing thread.
  using Complete = std::function<void(CheckpointContents&)>;

  // keep: how many checkpoints to keep; none: all.
  BackgroundWriter(std::filesystem::path checkpoints, std::optional<int64_t> keep);
  ~BackgroundWriter();  // waits
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // Raises what the save before raised.
  void save(CheckpointContents contents, Complete complete);
  // In the calling thread, without a copy; the memory of earlier copies is given back.
  std::filesystem::path save_now(CheckpointContents contents, const Complete& complete);

  void remove_old() const;  // all but those to keep

  bool busy() const { return busy_; }
  void wait();           // raises what the save raised
  void finish();         // the same, and gives back the copy's memory
  void raise_failure();  // if one has ended in failure; does not wait

 private:
  Tensor copy(const std::string& key, const Tensor& value);
  std::filesystem::path write(CheckpointContents contents, const Complete& complete) const;

  std::filesystem::path checkpoints_;
  std::optional<int64_t> keep_;
  std::map<std::string, Tensor> buffers_;  // of the copy, by file and name
  std::thread thread_;
  std::atomic<bool> busy_ = false;
  std::exception_ptr failure_;  // read when not busy
};

}  // namespace graft
