#include "checkpoint/background_writer.h"

#include <cstring>
#include <utility>

#include "checkpoint/checkpoint_folder.h"

namespace graft {

BackgroundWriter::BackgroundWriter(std::filesystem::path checkpoints, std::optional<int64_t> keep)
    : checkpoints_(std::move(checkpoints)), keep_(keep) {}

BackgroundWriter::~BackgroundWriter() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundWriter::wait() {
  if (thread_.joinable()) thread_.join();
  raise_failure();
}

void BackgroundWriter::raise_failure() {
  if (busy_ || !failure_) return;
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

void BackgroundWriter::finish() {
  wait();
  buffers_.clear();
}

Tensor BackgroundWriter::copy(const std::string& key, const Tensor& value) {
  Tensor& buffer = buffers_[key];
  if (!buffer.defined() || buffer.dtype() != value.dtype() || buffer.shape() != value.shape()) {
    buffer = Tensor::empty(value.dtype(), value.shape());
  }
  std::memcpy(buffer.mutable_bytes(), value.bytes(), value.size_bytes());
  return buffer;
}

std::filesystem::path BackgroundWriter::write(CheckpointContents contents,
                                              const Complete& complete) const {
  if (complete) complete(contents);
  std::filesystem::path folder = write_checkpoint(checkpoints_, std::move(contents));
  remove_old();
  return folder;
}

void BackgroundWriter::remove_old() const {
  if (keep_) CheckpointFolder(checkpoints_).keep_newest(*keep_);
}

void BackgroundWriter::save(CheckpointContents contents, Complete complete) {
  wait();  // the buffers are free then
  for (CheckpointTensorFile& file : contents.tensors) {
    if (file.part == kBasePart) continue;
    for (auto& [name, tensor] : file.tensors) tensor = copy(file.name + "/" + name, tensor);
  }
  busy_ = true;
  thread_ = std::thread([this, contents = std::move(contents), complete = std::move(complete)] {
    lower_thread_priority();
    try {
      write(contents, complete);
    } catch (...) {
      failure_ = std::current_exception();
    }
    busy_ = false;
  });
}

std::filesystem::path BackgroundWriter::save_now(CheckpointContents contents,
                                                 const Complete& complete) {
  finish();
  return write(std::move(contents), complete);
}

}  // namespace graft
