#include "pjrt/target.h"

#include <gmock/gmock.h>

#include "support/errors.h"

namespace graft::pjrt {
namespace {

using graft::testing::error_of;
using ::testing::HasSubstr;

TEST(Target, DevicesAndMemory) {
  EXPECT_EQ(parse_target("v5e:4x4").devices, 16);
  EXPECT_EQ(parse_target("v5e:4x4").topology, "v5e:4x4");
  EXPECT_EQ(parse_target("v6e:2x4").devices, 8);
  EXPECT_EQ(parse_target("v5p:2x2x4").devices, 16);
  const Target h100 = parse_target("h100:8");
  EXPECT_EQ(h100.devices, 8);
  EXPECT_EQ(std::get<std::string>(h100.options.at("topology")), "1x1x8");
  EXPECT_THAT(std::get<std::string>(h100.options.at("target_config")), HasSubstr("major: 9"));
  EXPECT_GT(parse_target("h200:8").memory_bytes, h100.memory_bytes);
  EXPECT_EQ(parse_target("pjrt:cpu").plugin, "cpu");
}

TEST(Target, RefusesOthersWithTheList) {
  for (const char* name : {"h1000:8", "v5e:4xx4", "v5e:", "h100:0", "h100:2x2", "v5e:-1x2", "",
                           "v5e:99999x1", "a100:8"}) {
    EXPECT_THAT(error_of([&] { parse_target(name); }), HasSubstr("v5p:2x2x1")) << name;
  }
  EXPECT_THAT(error_of([] { parse_target("v5p:2x2"); }), HasSubstr("3 extents"));
}

}  // namespace
}  // namespace graft::pjrt
