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
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/append_file.h"

namespace graft {

uint32_t crc32c(std::string_view bytes);  // Castagnoli, as in RFC 3720

class TensorBoardWriter {
 public:
  // Creates events.out.tfevents.<seconds>.<host>.<process> in `folder`; raises Error naming it.
  // Where steps were completed before, TensorBoard is told to drop what older files say of later
  // ones.
  explicit TensorBoardWriter(const std::filesystem::path& folder, int64_t completed_steps = 0);

  // Scalars at one step, there for TensorBoard when the call returns.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void append_record(std::string_view event);

  AppendFile file_;
};

}  // namespace graft
