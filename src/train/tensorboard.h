#pragma once
// Event files that TensorBoard opens.
//
// The file is a sequence of TFRecords (length, masked CRC-32C of the length, bytes, masked CRC-32C
// of the bytes), each one an Event message of TensorFlow's event.proto. Only five of its fields are
// needed, so they are encoded here; a protobuf library would be a dependency for a few dozen lines.
//
//   TensorBoardWriter events("runs/first");
//   events.write(step, {{"train/loss", 4.68}, {"train/grad_norm", 0.9}});

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace graft {

uint32_t crc32c(std::string_view bytes);  // Castagnoli, as in RFC 3720

class TensorBoardWriter {
 public:
  // Creates events.out.tfevents.<seconds>.<host>.<process> in `folder`; raises Error naming it.
  explicit TensorBoardWriter(const std::filesystem::path& folder);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // Scalars at one step, there for TensorBoard when the call returns.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  void append_record(std::string_view event);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace graft
