#include "train/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>

#include "formats/protobuf.h"

namespace graft {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

// TFRecord's mask: a CRC of data that holds CRCs would be weak.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

using protobuf::bytes_field, protobuf::double_field, protobuf::float_field;
using protobuf::little_endian, protobuf::varint_field;

// Field numbers of event.proto and summary.proto.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSessionLog = 7;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueSimple = 2;
constexpr int kSessionStatus = 1, kSessionStart = 1;

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return crc ^ 0xffffffffu;
}

namespace {

std::filesystem::path event_file(const std::filesystem::path& folder) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"localhost"};
  // The process's number keeps two runs in the same second apart.
  return folder / fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<int64_t>(wall_time()),
                              host.data(), ::getpid());
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, int64_t completed_steps)
    : file_(event_file(folder), AppendFile::Begin::kAnew) {
  append_record(double_field(kEventWallTime, wall_time()) +
                bytes_field(kEventFileVersion, "brain.Event:2"));
  if (completed_steps == 0) return;
  append_record(double_field(kEventWallTime, wall_time()) +
                varint_field(kEventStep, static_cast<uint64_t>(completed_steps) + 1) +
                bytes_field(kEventSessionLog, varint_field(kSessionStatus, kSessionStart)));
}

void TensorBoardWriter::write(int64_t step,
                              const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += bytes_field(kSummaryValue, bytes_field(kValueTag, tag) +
                                              float_field(kValueSimple, static_cast<float>(value)));
  }
  append_record(double_field(kEventWallTime, wall_time()) +
                varint_field(kEventStep, static_cast<uint64_t>(step)) +
                bytes_field(kEventSummary, summary));
}

void TensorBoardWriter::append_record(std::string_view event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  std::string record = length + little_endian(masked_crc(length));
  record += event;
  record += little_endian(masked_crc(event));
  file_.append(record);
}

}  // namespace graft
