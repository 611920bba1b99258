#include "sharding/partition_spec.h"

#include <gmock/gmock.h>

#include "base/tensor.h"
#include "sharding/sdy.h"
#include "support/errors.h"

namespace graft {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

const Mesh k2x2({{"fsdp", 2}, {"tensor", 2}});
const Mesh k4x2({{"fsdp", 4}, {"tensor", 2}});

TEST(PartitionSpec, Prints) {
  EXPECT_EQ(to_string(PartitionSpec{{{"tensor"}, {"data", "fsdp"}, {}}}),
            "P('tensor', ('data', 'fsdp'), None)");
  EXPECT_EQ(to_string(PartitionSpec{}), "P()");
}

TEST(PartitionSpec, AxesOfSizeOneAreNotPrinted) {
  const Mesh mesh({{"data", 1}, {"fsdp", 4}, {"tensor", 1}});
  const PartitionSpec spec{{{"data", "fsdp"}, {"tensor"}}};
  EXPECT_EQ(without_unit_axes(spec, mesh), (PartitionSpec{{{"fsdp"}, {}}}));
  EXPECT_EQ(spec.dimensions[0].size(), 2U) << "the spec itself keeps them";
}

TEST(PartitionSpec, ShardShapesByValue) {
  const PartitionSpec spec{{{"tensor"}, {"fsdp"}}};
  EXPECT_EQ(shard_shape({k2x2, spec}, {6, 8}), (Shape{3, 4}));
  EXPECT_EQ(shard_shape({k4x2, spec}, {6, 8}), (Shape{3, 2}));
  EXPECT_EQ(shard_shape({k4x2, spec}, {6, 9}), (Shape{3, 3})) << "an activation is padded";
  EXPECT_EQ(shard_shape({k4x2, PartitionSpec{{{"fsdp", "tensor"}}}}, {16, 5}), (Shape{2, 5}));
}

TEST(PartitionSpec, SlicesOfEveryDevice) {
  const NamedSharding rows_and_columns{k4x2, {{{"tensor"}, {"fsdp"}}}};
  // Device 5 stands at fsdp 2, tensor 1.
  EXPECT_EQ(shard_slice(rows_and_columns, {6, 8}, 5), (ShardSlice{{3, 4}, {3, 2}}));
  const NamedSharding both{k4x2, {{{"fsdp", "tensor"}}}};
  EXPECT_EQ(shard_slice(both, {16}, 5), (ShardSlice{{10}, {2}}));
  const NamedSharding swapped{k4x2, {{{"tensor", "fsdp"}}}};
  EXPECT_EQ(shard_slice(swapped, {16}, 5), (ShardSlice{{12}, {2}})) << "major axis first";
}

TEST(PartitionSpec, EachSliceHasOneOwner) {
  EXPECT_THAT(owners({k4x2, {{{"fsdp"}}}}), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(owners({k2x2, {{{"tensor"}, {"fsdp"}}}}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(owners({k2x2, {}}), ElementsAre(0));
}

// A sharding replaces the leaf itself: the result maps names to shardings, never to arrays with
// shardings beside them.
TEST(Shardings, ReplaceTheLeaves) {
  const Shardings known{
      {"a", {k2x2, {{{"tensor"}, {}}}}}, {"b", {k2x2, {}}}, {"unused", {k2x2, {{{"fsdp"}}}}}};
  std::map<std::string, Tensor> state;
  state.emplace("a", Tensor::zeros(DType::kF32, {4, 4}));
  state.emplace("b", Tensor::zeros(DType::kF32, {4}));
  const Shardings replaced = replace_leaves(state, known);
  ASSERT_EQ(replaced.size(), 2U);
  EXPECT_EQ(replaced.at("a"), known.at("a"));
  EXPECT_EQ(replaced.at("b"), known.at("b"));
  state.emplace("c.lora_A", Tensor::zeros(DType::kF32, {2, 4}));
  EXPECT_THAT(error_of([&] { replace_leaves(state, known); }), HasSubstr("c.lora_A"))
      << "an adapter attached afterwards needs shardings of its own";
}

TEST(ScanAxis, EntersWhereItIsAbsent) {
  EXPECT_THAT(with_scan_axis(std::vector<std::string>{"mlp", "embed"}, 2, 0),
              ElementsAre("layers", "mlp", "embed"));
  EXPECT_THAT(with_scan_axis(std::vector<std::string>{"mlp", "embed"}, 2, 1),
              ElementsAre("mlp", "layers", "embed"));
  EXPECT_THAT(with_scan_axis({"layers", "mlp", "embed"}, 2, 0),
              ElementsAre("layers", "mlp", "embed"))
      << "there already";
  EXPECT_EQ(with_scan_axis(PartitionSpec{{{"tensor"}}}, 2, 0),
            (PartitionSpec{{{}, {"tensor"}, {}}}));
}

TEST(ScanAxis, DisagreementWithTheRankRaises) {
  EXPECT_THAT(without_scan_axis({"layers", "mlp", "embed"}, 3, 0, "w"),
              ElementsAre("mlp", "embed"));
  EXPECT_THAT(error_of([] {
                without_scan_axis({"mlp", "embed"}, 3, 0, "w");
              }),
              HasSubstr("2 logical axes for an array of 3 dimensions"));
  EXPECT_THAT(error_of([] {
                without_scan_axis({"layers", "mlp", "embed"}, 2, 0, "w");
              }),
              HasSubstr("3 logical axes for an array of 2"));
  EXPECT_THAT(error_of([] {
                without_scan_axis({"mlp", "embed"}, 2, 0, "w");
              }),
              HasSubstr("\"mlp\", not \"layers\""));
  EXPECT_THAT(error_of([] { without_scan_axis({"layers"}, 1, 1, "w"); }), HasSubstr("w"));
  EXPECT_THAT(error_of([] { with_scan_axis(std::vector<std::string>{"mlp"}, 2, 0); }),
              HasSubstr("1 logical axes for a stack of arrays of 2"));
  EXPECT_THAT(error_of([] {
                with_scan_axis(PartitionSpec{{{}, {}, {}}}, 2, 0);
              }),
              HasSubstr("more dimensions"));
}

// Dense layers and then mixtures of experts: a stack of two stacks. Each level is taken out by
// itself, with the rank that it has.
TEST(ScanAxis, NestedStacks) {
  const std::vector<std::string> nested{"layers", "layers", "mlp", "embed"};
  const std::vector<std::string> one = without_scan_axis(nested, 4, 0, "moe.w");
  EXPECT_THAT(one, ElementsAre("layers", "mlp", "embed"));
  EXPECT_THAT(without_scan_axis(one, 3, 0, "moe.w"), ElementsAre("mlp", "embed"));
  EXPECT_THAT(error_of([&] { without_scan_axis(one, 4, 0, "moe.w"); }), HasSubstr("moe.w"))
      << "a level taken out of the metadata and not of the array";
}

TEST(Sdy, Text) {
  EXPECT_EQ(sdy_mesh(k4x2), "sdy.mesh @mesh = <[\"fsdp\"=4, \"tensor\"=2]>");
  EXPECT_EQ(sdy_sharding({{{"tensor"}, {"data", "fsdp"}}}, 3),
            "#sdy.sharding<@mesh, [{\"tensor\"}, {\"data\", \"fsdp\"}, {}]>");
  EXPECT_EQ(sdy_constraint("%2", "%1", "tensor<4xf32>", {{{"fsdp"}}}, 1),
            "%2 = sdy.sharding_constraint %1 <@mesh, [{\"fsdp\"}]> : tensor<4xf32>");
}

}  // namespace
}  // namespace graft
