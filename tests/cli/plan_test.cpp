// graft plan as a user calls it: on config.json alone, for this machine and for others by their own
// compilers.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "pjrt/wheels.h"
#include "support/program.h"
#include "support/temporary.h"
#include "support/tiny_model.h"

namespace graft {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::ProgramResult;

class PlanCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    // No weights: the configuration is all there is.
    write_file_atomically(folder_ / "config.json", testing::tiny_config(2).dump());
    write_file_atomically(folder_ / "recipe.yaml", "model: " + folder_.path().string() +
                                                       "\ndata: {max_length: 64}\nlora: {r: 2}\n"
                                                       "training: {per_device_batch_size: 1}\n");
  }
  ProgramResult plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {GRAFT_BINARY, "plan", folder_ / "recipe.yaml"});
    return testing::run_program(std::move(arguments));
  }
  json plan_json(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    const ProgramResult result = plan(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
  // The verdict of a target's compiler.
  void check_target(const std::string& target, int64_t devices) const {
    const json report =
        plan_json({"--target", target, "mesh={fsdp: -1, tensor: 2}", "compute.virtual_devices=4"});
    ASSERT_FALSE(report["fits"].is_null()) << report["compiler"].dump();
    EXPECT_TRUE(report["fits"].get<bool>());
    EXPECT_EQ(report["devices"], devices);
    const json& memory = report["memory_per_device"];
    EXPECT_GT(memory["argument_bytes"].get<int64_t>(), 0);
    EXPECT_GT(memory["temporary_bytes"].get<int64_t>(), 0);
    EXPECT_LT(memory["total_bytes"].get<int64_t>(), memory["capacity_bytes"].get<int64_t>());
  }

  testing::TemporaryFolder folder_;
};

TEST_F(PlanCommand, ThisMachine) {
  const json report = plan_json({});
  const json& memory = report["memory"];
  EXPECT_EQ(memory["total_bytes"].get<int64_t>(),
            memory["weights_bytes"].get<int64_t>() + memory["adapter_bytes"].get<int64_t>() +
                memory["optimizer_bytes"].get<int64_t>() +
                memory["activation_bytes"].get<int64_t>() +
                memory["workspace_bytes"].get<int64_t>() + memory["constant_bytes"].get<int64_t>() +
                memory["batch_bytes"].get<int64_t>());
  EXPECT_TRUE(report["fits"].get<bool>());
  EXPECT_GT(report["largest_batch"].get<int64_t>(), 1);
  EXPECT_EQ(report["longest_sequence"].get<int64_t>(), 256);
  EXPECT_EQ(report["flops"]["weight_gradient"].get<double>(), 0);
  EXPECT_FALSE(plan_json({"--memory", "0.0001"})["fits"].get<bool>());
  EXPECT_THAT(plan({}).out, HasSubstr("fits, with"));
}

TEST_F(PlanCommand, PrintsTheProgram) {
  const ProgramResult result =
      plan({"--print", "stablehlo", "--target", "v5e:2x2", "mesh={fsdp: 2, tensor: 2}"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("sdy.mesh @mesh = <[\"fsdp\"=2, \"tensor\"=2]>"));
  EXPECT_THAT(result.out, HasSubstr("stablehlo.while"));
}

TEST_F(PlanCommand, RefusesWithExitCodes) {
  EXPECT_EQ(plan({"--target", "abacus:8"}).exit_code, 1);
  EXPECT_EQ(plan({"--print", "punch-cards"}).exit_code, 2);
  EXPECT_EQ(plan({"--save", folder_ / "x"}).exit_code, 2);
  const ProgramResult mesh = plan({"--target", "h100:8", "mesh={fsdp: 3}"});
  EXPECT_EQ(mesh.exit_code, 1);
  EXPECT_THAT(mesh.last_error_line(), HasSubstr("3 devices, and there are 8"));
}

#define GRAFT_PLUGIN_OR_SKIP(name)                  \
  if (!pjrt::is_installed(pjrt::plugin_kind(name))) \
  GTEST_SKIP() << "NOT TESTED: the plugin is missing (graft plugins install " << name << ")"

TEST_F(PlanCommand, VirtualDevicesOfThisMachine) {
  GRAFT_PLUGIN_OR_SKIP("cpu");
  check_target("pjrt:cpu", 4);
}

TEST_F(PlanCommand, SavesAndRefusesAnotherProgram) {
  GRAFT_PLUGIN_OR_SKIP("cpu");
  const std::string saved = folder_ / "saved";
  plan_json({"--target", "pjrt:cpu", "mesh={fsdp: 2}", "--save", saved});
  EXPECT_EQ(plan_json({"--target", "pjrt:cpu", "mesh={fsdp: 2}", "--load", saved})["loaded"],
            saved);
  const ProgramResult other = plan({"--target", "pjrt:cpu", "mesh={fsdp: 4}", "--load", saved});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.last_error_line(), HasSubstr("another target"));
}

TEST_F(PlanCommand, TpuTopology) {
  GRAFT_PLUGIN_OR_SKIP("tpu");
  check_target("v5e:2x4", 8);
}

TEST_F(PlanCommand, CudaTopology) {
  GRAFT_PLUGIN_OR_SKIP("cuda13");
  check_target("h100:8", 8);
}

}  // namespace
}  // namespace graft
