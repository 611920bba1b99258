#include "sharding/mesh.h"

#include <gmock/gmock.h>

#include "support/errors.h"

namespace graft {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

TEST(Mesh, TheRestOfTheDevicesGoesToTheOpenAxis) {
  const Mesh mesh = Mesh::resolve({{"data", 1}, {"fsdp", -1}, {"tensor", 2}}, 8);
  EXPECT_EQ(mesh.size("fsdp"), 4);
  EXPECT_EQ(mesh.devices(), 8);
  EXPECT_EQ(to_string(mesh), "data 1 x fsdp 4 x tensor 2");
  EXPECT_EQ(Mesh().devices(), 1);
}

TEST(Mesh, DevicesAreNumberedRowByRow) {
  const Mesh mesh({{"data", 2}, {"fsdp", 2}, {"tensor", 3}});
  EXPECT_EQ(mesh.coordinate(7, "data"), 1);  // 7 = (1 * 2 + 0) * 3 + 1
  EXPECT_EQ(mesh.coordinate(7, "fsdp"), 0);
  EXPECT_EQ(mesh.coordinate(7, "tensor"), 1);
  EXPECT_EQ(mesh.coordinate(7, "stage"), 0);
}

TEST(Mesh, RefusesWhatCannotBe) {
  EXPECT_THAT(error_of([] {
                Mesh::resolve({{"fsdp", 4}}, 8);
              }),
              HasSubstr("4 devices, and there are 8"));
  EXPECT_THAT(error_of([] {
                Mesh::resolve({{"fsdp", 3}, {"data", -1}}, 8);
              }),
              HasSubstr("8 devices"));
  EXPECT_THAT(error_of([] {
                Mesh::resolve({{"fsdp", -1}, {"data", -1}}, 8);
              }),
              HasSubstr("two axes"));
  EXPECT_THAT(error_of([] { Mesh::resolve({{"fsdp", -1}}, 0); }), HasSubstr("not known"));
  EXPECT_THAT(error_of([] { Mesh({{"fdsp", 2}}); }), HasSubstr("no axis \"fdsp\""));
  EXPECT_THAT(error_of([] { Mesh({{"fsdp", 2}, {"fsdp", 2}}); }), HasSubstr("twice"));
  EXPECT_THAT(error_of([] { Mesh({{"fsdp", 0}}); }), HasSubstr("size 0"));
  EXPECT_THAT(error_of([] { Mesh({{"fsdp", 1 << 19}, {"data", 1 << 19}}); }), HasSubstr("million"));
}

TEST(Mesh, ContextIsRefusedByName) {
  EXPECT_THAT(error_of([] {
                refuse_unsupported_axes(Mesh({{"data", 2}, {"context", 2}}));
              }),
              HasSubstr("context"));
  EXPECT_EQ(error_of([] { refuse_unsupported_axes(Mesh({{"data", 2}, {"context", 1}})); }), "");
}

}  // namespace
}  // namespace graft
