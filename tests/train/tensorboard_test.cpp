#include "train/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "base/file.h"
#include "support/temporary.h"

namespace graft {
namespace {

// A second, plain reading of the two formats, against which the writer is checked.
struct Field {
  uint64_t number = 0, type = 0, value = 0;  // value: a varint, or the bits of a fixed-width number
  std::string bytes;
};

uint64_t take_varint(std::string_view& text) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(text.at(0));
    text.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

template <typename T>
T take_fixed(std::string_view& text) {
  T value = 0;
  std::memcpy(&value, text.substr(0, sizeof(T)).data(), sizeof(T));
  text.remove_prefix(sizeof(T));
  return value;
}

std::vector<Field> decode(std::string_view text) {
  std::vector<Field> fields;
  while (!text.empty()) {
    Field field;
    const uint64_t key = take_varint(text);
    field.number = key >> 3;
    field.type = key & 7;
    switch (field.type) {
      case 0: field.value = take_varint(text); break;
      case 1: field.value = take_fixed<uint64_t>(text); break;
      case 5: field.value = take_fixed<uint32_t>(text); break;
      default: {
        const uint64_t size = take_varint(text);
        field.bytes = text.substr(0, size);
        text.remove_prefix(size);
      }
    }
    fields.push_back(field);
  }
  return fields;
}

std::vector<std::string> records(std::string_view text) {
  const auto mask = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; };
  std::vector<std::string> all;
  while (!text.empty()) {
    const std::string_view head = text.substr(0, 8);
    const auto size = take_fixed<uint64_t>(text);
    EXPECT_EQ(take_fixed<uint32_t>(text), mask(crc32c(head)));
    all.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
    EXPECT_EQ(take_fixed<uint32_t>(text), mask(crc32c(all.back())));
  }
  return all;
}

TEST(TensorBoard, ChecksumIsCastagnolis) {
  // RFC 3720, appendix B.4, and the customary check value.
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(TensorBoard, FileReadsBack) {
  testing::TemporaryFolder folder;
  std::filesystem::path path;
  {
    TensorBoardWriter writer(folder.path());
    path = writer.path();
    writer.write(1, {{"train/loss", 4.5}, {"train/grad_norm", 0.25}});
    writer.write(300, {{"eval/loss", 2.5}});
    EXPECT_EQ(records(read_text_file(path)).size(), 3u);  // there before the writer is gone
  }
  EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents."));
  const std::vector<std::string> events = records(read_text_file(path));
  ASSERT_EQ(events.size(), 3u);
  const std::vector<Field> version = decode(events[0]);
  EXPECT_EQ(version.at(1).number, 3u);
  EXPECT_EQ(version.at(1).bytes, "brain.Event:2");

  const std::vector<Field> event = decode(events[1]);
  ASSERT_EQ(event.size(), 3u);
  EXPECT_GT(std::bit_cast<double>(event[0].value), 1.7e9);  // seconds since 1970
  EXPECT_EQ(event[1].number, 2u);
  EXPECT_EQ(event[1].value, 1u);
  EXPECT_EQ(event[2].number, 5u);
  const std::vector<Field> values = decode(event[2].bytes);
  ASSERT_EQ(values.size(), 2u);
  const std::vector<Field> loss = decode(values[0].bytes);
  EXPECT_EQ(loss.at(0).bytes, "train/loss");
  EXPECT_EQ(loss.at(1).number, 2u);
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(loss.at(1).value)), 4.5f);
  EXPECT_EQ(decode(values[1].bytes).at(0).bytes, "train/grad_norm");
  EXPECT_EQ(decode(events[2]).at(1).value, 300u);
}

}  // namespace
}  // namespace graft
