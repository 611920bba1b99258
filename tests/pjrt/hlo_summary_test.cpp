#include "pjrt/hlo_summary.h"

#include <gmock/gmock.h>

#include "formats/protobuf.h"
#include "support/errors.h"

namespace graft::pjrt {
namespace {

using graft::testing::error_of;
using protobuf::bytes_field, protobuf::varint, protobuf::varint_field;
using ::testing::HasSubstr;

constexpr int kF32 = 11, kBF16 = 16;

std::string array(int type, std::vector<uint64_t> dimensions) {
  std::string packed;
  for (const uint64_t d : dimensions) packed += varint(d);
  return varint_field(2, static_cast<uint64_t>(type)) + bytes_field(3, packed);
}
std::string instruction(const std::string& opcode, const std::string& shape) {
  return bytes_field(2, bytes_field(1, "i") + bytes_field(2, opcode) + bytes_field(3, shape));
}

TEST(HloSummary, CountsCollectivesByKindAndBytes) {
  const std::string tuple =
      varint_field(2, 13) + bytes_field(4, array(kF32, {2})) + bytes_field(4, array(kBF16, {3, 5}));
  const std::string body =
      instruction("all-gather", array(kBF16, {4, 8})) + instruction("add", array(kF32, {100}));
  const std::string entry = instruction("all-reduce-start", array(kF32, {10})) +
                            instruction("all-reduce-done", array(kF32, {10})) +
                            instruction("all-gather", array(kF32, {4})) +
                            instruction("all-to-all", tuple);
  const std::string module = bytes_field(1, "step") + bytes_field(3, body) + bytes_field(3, entry);
  for (const bool with_config : {false, true}) {
    const Collectives found = with_config
                                  ? count_collectives("hlo_with_config", bytes_field(1, module))
                                  : count_collectives("hlo", module);
    ASSERT_EQ(found.size(), 3U);
    EXPECT_EQ(found.at("all-gather").count, 2);
    EXPECT_EQ(found.at("all-gather").bytes, 4 * 8 * 2 + 4 * 4);
    EXPECT_EQ(found.at("all-reduce").count, 1);
    EXPECT_EQ(found.at("all-reduce").bytes, 40);
    EXPECT_EQ(found.at("all-to-all").bytes, 8 + 30);
  }
}

TEST(HloSummary, RefusesWhatIsNoModule) {
  const std::string entry = instruction("all-reduce", array(kF32, {10}));
  const std::string module = bytes_field(3, entry);
  for (size_t cut = 1; cut < module.size(); ++cut) {
    EXPECT_NE(error_of([&] { count_collectives("hlo", std::string_view(module).substr(0, cut)); }),
              "")
        << cut;
  }
  EXPECT_THAT(error_of([] { count_collectives("mlir", ""); }), HasSubstr("mlir"));
}

}  // namespace
}  // namespace graft::pjrt
