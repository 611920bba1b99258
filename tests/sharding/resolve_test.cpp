#include "sharding/resolve.h"

#include <gmock/gmock.h>

#include "support/errors.h"

namespace graft {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const Mesh k2x2({{"fsdp", 2}, {"tensor", 2}});
const Mesh k4x2({{"fsdp", 4}, {"tensor", 2}});

VariableSpec parameter(std::string name, Shape shape, std::vector<std::string> axes) {
  return {std::move(name), VariableKind::kParam, DType::kF32, std::move(shape), std::move(axes)};
}

PartitionSpec resolved(const VariableSpec& v, const Mesh& mesh,
                       std::vector<LostAxis>* lost = nullptr,
                       const AxisRules& rules = default_axis_rules()) {
  return variable_sharding(v, mesh, rules, lost).spec;
}

TEST(Rules, ParametersByValue) {
  const VariableSpec up = parameter("up", {16, 8}, {"mlp", "embed"});
  EXPECT_EQ(resolved(up, k2x2), (PartitionSpec{{{"tensor"}, {"fsdp"}}}));
  EXPECT_EQ(shard_shape(variable_sharding(up, k4x2, default_axis_rules()), up.shape),
            (Shape{8, 2}));
  EXPECT_EQ(resolved(parameter("down", {8, 16}, {"embed", "mlp"}), k4x2),
            (PartitionSpec{{{"fsdp"}, {"tensor"}}}));
  EXPECT_EQ(resolved(parameter("norm", {8}, {"norm"}), k2x2), (PartitionSpec{{{"tensor"}}}));
}

TEST(Rules, LocalOnesComeFirst) {
  const AxisRules rules = combine({{"embed", {"tensor"}}, {"mlp", {}}}, default_axis_rules());
  EXPECT_EQ(resolved(parameter("up", {16, 8}, {"mlp", "embed"}), k2x2, nullptr, rules),
            (PartitionSpec{{{}, {"tensor"}}}));
}

TEST(Rules, TheNextRuleIsTakenWhereTheFirstIsNotFree) {
  const AxisRules rules = {{"a", {"tensor"}}, {"b", {"tensor", "fsdp"}}, {"b", {"fsdp"}}};
  std::vector<LostAxis> lost;
  EXPECT_EQ(logical_to_mesh({"a", "b"}, rules, k2x2, &lost),
            (PartitionSpec{{{"tensor"}, {"fsdp"}}}));
  EXPECT_THAT(lost, IsEmpty());
}

TEST(Rules, AnAxisUsedTwiceIsToldAndTheFreePartKept) {
  const AxisRules rules = {{"a", {"tensor"}}, {"b", {"tensor", "fsdp"}}};
  std::vector<LostAxis> lost;
  EXPECT_EQ(logical_to_mesh({"a", "b"}, rules, k2x2, &lost),
            (PartitionSpec{{{"tensor"}, {"fsdp"}}}));
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(lost[0].mesh_axis, "tensor");
  EXPECT_EQ(lost[0].dimension, 1U);
  EXPECT_EQ(lost[0].reason, "tensor already splits dimension 0");
}

TEST(Rules, AnUnknownLogicalAxisIsAnError) {
  EXPECT_THAT(error_of([] { resolved(parameter("w", {4}, {"embde"}), k2x2); }), HasSubstr("embde"));
  EXPECT_THAT(error_of([] {
                resolved(parameter("w", {4}, {"embed", "mlp"}), k2x2);
              }),
              HasSubstr("2 logical axes for 1"));
}

// A parameter loses the axis that does not divide, and says so by name; an activation of the very
// same axes and shape keeps its spec.
TEST(Indivisible, ParametersLoseTheAxisActivationsDoNot) {
  VariableSpec v = parameter("vocabulary", {97, 6}, {"vocab", "embed"});
  std::vector<LostAxis> lost;
  EXPECT_EQ(resolved(v, k2x2, &lost), (PartitionSpec{{{}, {"fsdp"}}}));
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(lost[0],
            (LostAxis{"vocabulary", 0, "vocab", "tensor", "97 does not divide by tensor 2"}));
  lost.clear();
  EXPECT_EQ(resolved(v, k4x2, &lost), (PartitionSpec{{{}, {}}}));
  ASSERT_THAT(lost, SizeIs(2));
  EXPECT_EQ(lost[1].reason, "6 does not divide by fsdp 4");

  v.kind = VariableKind::kData;
  v.logical_axes = {"activation_vocab", "activation_batch"};
  lost.clear();
  EXPECT_EQ(resolved(v, k4x2, &lost), (PartitionSpec{{{"tensor"}, {"fsdp"}}}));
  EXPECT_THAT(lost, IsEmpty());
}

TEST(Indivisible, ListsAreKeptGreedilyWhileTheProductDivides) {
  const PartitionSpec spec{{{"fsdp", "tensor"}}};
  EXPECT_EQ(divisible_spec(spec, k4x2, {8}), spec);
  EXPECT_EQ(divisible_spec(spec, k4x2, {4}), (PartitionSpec{{{"fsdp"}}}));
  std::vector<LostAxis> lost;
  EXPECT_EQ(divisible_spec(spec, k4x2, {6}, {}, &lost), (PartitionSpec{{{"tensor"}}}))
      << "the second is kept where the first does not divide";
  EXPECT_EQ(lost[0].mesh_axis, "fsdp");
  EXPECT_EQ(divisible_spec(spec, k4x2, {7}), (PartitionSpec{{{}}}));
  lost.clear();
  divisible_spec(spec, k4x2, {12}, {}, &lost);
  EXPECT_EQ(lost[0].reason, "12 does not divide by 4 x tensor 2");
}

TEST(Adapters, FollowTheirBase) {
  // On mlp.up_proj: [16, 8] over (tensor, fsdp).
  VariableSpec a = parameter("up.lora_A", {3, 8}, {"lora_rank", "embed"});
  VariableSpec b = parameter("up.lora_B", {16, 3}, {"mlp", "lora_rank"});
  a.kind = b.kind = VariableKind::kAdapter;
  EXPECT_EQ(resolved(a, k4x2), (PartitionSpec{{{}, {"fsdp"}}}));
  EXPECT_EQ(resolved(b, k4x2), (PartitionSpec{{{"tensor"}, {}}}));
}

// NF4 in blocks of 64: 36 bytes, the scale and 64 codes.
TEST(Packed, WeightsAreSharedOutByWholeBlocks) {
  VariableSpec packed = parameter("w", {6, 4 * 36}, {"mlp", "embed:36"});
  packed.dtype = DType::kU8;
  std::vector<LostAxis> lost;
  EXPECT_EQ(resolved(packed, k4x2, &lost), (PartitionSpec{{{"tensor"}, {"fsdp"}}}));
  EXPECT_THAT(lost, IsEmpty());
  // 108 bytes divide by 4, but their 3 blocks do not.
  packed.shape = {6, 3 * 36};
  EXPECT_EQ(resolved(packed, k4x2, &lost), (PartitionSpec{{{"tensor"}, {}}}));
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(lost[0].reason, "108 in blocks of 36 does not divide by fsdp 4");
  EXPECT_EQ(lost[0].logical, "embed");
  EXPECT_EQ(axis_with_unit("embed", 36), "embed:36");
  EXPECT_EQ(axis_with_unit("embed", 1), "embed");
  packed.logical_axes = {"mlp", "embed:x"};
  EXPECT_THAT(error_of([&] { resolved(packed, k4x2); }), HasSubstr("embed:x"));
}

TEST(Table, BytesPerDeviceFallAsTheMeshGrows) {
  std::vector<VariableSpec> variables = {
      parameter("model.embed_tokens.weight", {97, 8}, {"vocab", "embed"}),
      parameter("model.layers.0.mlp.up_proj.weight", {16, 8}, {"mlp", "embed"}),
      parameter("model.layers.1.mlp.up_proj.weight", {16, 8}, {"mlp", "embed"})};
  const ShardingTable one = resolve_shardings(variables, Mesh(), default_axis_rules());
  EXPECT_EQ(one.bytes(), 4 * (97 * 8 + 2 * 16 * 8));
  EXPECT_EQ(one.bytes_per_device(), one.bytes());
  const ShardingTable small = resolve_shardings(variables, k2x2, default_axis_rules());
  EXPECT_EQ(small.bytes_per_device(), 4 * (97 * 4 + 2 * 8 * 4));
  const ShardingTable large = resolve_shardings(variables, k4x2, default_axis_rules());
  EXPECT_EQ(large.bytes_per_device(), 4 * (97 * 2 + 2 * 8 * 2));
  EXPECT_EQ(large.shardings().size(), 3U);
  const std::string text = format_table(large);
  EXPECT_THAT(text, HasSubstr("fsdp 4 x tensor 2"));
  EXPECT_THAT(text, HasSubstr("model.layers.*.mlp.up_proj.weight     2 x f32[16, 8]"));
  EXPECT_THAT(text, HasSubstr("97 does not divide by tensor 2"));
}

}  // namespace
}  // namespace graft
