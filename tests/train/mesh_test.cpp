// Training on a mesh of virtual devices equals training on one, whatever divides and whatever does
// not; and a run moves between meshes, one device and the native executor.

#include <gtest/gtest.h>

#include <cmath>

#include "pjrt/wheels.h"
#include "support/tiny_run.h"

namespace graft {
namespace {

using testing::comparable_metrics;
using testing::slurp;
using testing::TinyRun;
using Settings = std::vector<std::string>;

// Six heads over three key heads, 97 words and 52 features of the gate: no mesh axis of two divides
// the words and the key heads, none of four the heads.
nlohmann::json indivisible_config() {
  nlohmann::json config = testing::tiny_config(2);
  config["hidden_size"] = 48;
  config["intermediate_size"] = 52;
  config["num_attention_heads"] = 6;
  config["num_key_value_heads"] = 3;
  return config;
}

struct Layout {
  const char* name;
  const char* mesh;  // "": one device
  int64_t batch_parts;
};

// Ten steps of sixteen rows, on the mesh.
Settings on(const Layout& layout) {
  Settings settings = {"training.max_steps=10",
                       "training.gradient_accumulation_steps=2",
                       "training.per_device_batch_size=" + std::to_string(8 / layout.batch_parts),
                       "training.logging_steps=1",
                       "compute.executor=pjrt:cpu",
                       "lora.lora_dropout=0"};
  if (*layout.mesh != '\0') settings.push_back("mesh=" + std::string(layout.mesh));
  return settings;
}

std::map<int64_t, double> losses_of(const std::filesystem::path& run) {
  std::map<int64_t, double> losses;
  for (const nlohmann::json& row : comparable_metrics(run)) {
    if (row.contains("loss")) losses[row["step"].get<int64_t>()] = row["loss"].get<double>();
  }
  return losses;
}

void expect_equal_losses(const std::filesystem::path& expected,
                         const std::filesystem::path& found) {
  const auto reference = losses_of(expected), losses = losses_of(found);
  ASSERT_EQ(reference.size(), 10U);
  ASSERT_EQ(losses.size(), 10U);
  for (const auto& [step, loss] : reference) {
    EXPECT_NEAR(losses.at(step), loss, 1e-5 * std::abs(loss)) << "step " << step;
  }
}

int64_t argument_bytes(const std::filesystem::path& run) {
  return nlohmann::json::parse(slurp(run / "audit.json"))["plan"]["argument_bytes"].get<int64_t>();
}

class MeshTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!pjrt::is_installed(pjrt::plugin_kind("cpu"))) {
      GTEST_SKIP() << "THE CPU PLUGIN IS NOT INSTALLED: run graft plugins install cpu";
    }
    testing::write_tiny_model(tiny_ / "model", indivisible_config());
  }
  TinyRun tiny_;
};

constexpr Layout kOne{"one", "", 1};
constexpr Layout kFourByTwo{"fsdp 4, tensor 2", "{fsdp: 4, tensor: 2}", 4};

TEST_F(MeshTraining, EveryMeshEqualsOneDevice) {
  const std::string base = slurp(tiny_ / "model" / "model.safetensors");
  tiny_.train("one", on(kOne));
  const int64_t whole = argument_bytes(tiny_ / "one");
  const std::vector<Layout> meshes = {{"fsdp 2", "{fsdp: 2}", 2},
                                      kFourByTwo,
                                      {"fsdp 8", "{fsdp: 8, tensor: 1}", 8},
                                      {"fsdp 2, tensor 4", "{fsdp: 2, tensor: 4}", 2},
                                      {"of three", "{data: 2, fsdp: 2, tensor: 2}", 4}};
  std::map<std::string, int64_t> bytes;
  for (const Layout& layout : meshes) {
    SCOPED_TRACE(layout.name);
    tiny_.train(layout.name, on(layout));
    expect_equal_losses(tiny_ / "one", tiny_ / layout.name);
    bytes[layout.name] = argument_bytes(tiny_ / layout.name);
    // What was trained has moved: B begins at zero.
    const SafetensorsFile adapter =
        SafetensorsFile::open(tiny_ / layout.name / "adapter" / "adapter_model.safetensors");
    for (const std::string& name : adapter.names()) {
      if (name.find("lora_B") == std::string::npos) continue;
      double sum = 0;
      const Tensor b = adapter.tensor(name);
      for (int64_t i = 0; i < b.elements(); ++i) sum += std::abs(b.data<float>()[i]);
      EXPECT_GT(sum, 0) << name;
    }
  }
  // A device holds less of the state the larger the mesh is. Vectors of norms and what does not
  // divide stay whole, so it is more than an eighth.
  EXPECT_LT(bytes["fsdp 2"], whole * 7 / 10);
  EXPECT_LT(bytes["fsdp 8"], bytes["fsdp 2"] * 6 / 10);
  EXPECT_LT(bytes["fsdp 4, tensor 2"], bytes["fsdp 2"] * 6 / 10);
  EXPECT_LT(bytes["fsdp 2, tensor 4"], bytes["fsdp 2"]);
  EXPECT_TRUE(slurp(tiny_ / "model" / "model.safetensors") == base);
}

TEST_F(MeshTraining, FullFineTuningToo) {
  const auto full = [](Settings settings) {
    settings.insert(settings.end(), {"training.method=full", "lora.r=", "lora.lora_dropout="});
    return settings;
  };
  tiny_.train("one", full(on(kOne)));
  tiny_.train("mesh", full(on(kFourByTwo)));
  expect_equal_losses(tiny_ / "one", tiny_ / "mesh");
}

// Five steps in one place, five in the other.
TEST_F(MeshTraining, ARunMovesBetweenMeshesAndExecutors) {
  const Layout two_by_two{"fsdp 2, tensor 2", "{fsdp: 2, tensor: 2}", 2};
  Settings native = on(kOne);
  native.push_back("compute.executor=native");
  tiny_.train("whole", native);
  const auto move = [&](const std::string& name, const Settings& first, const Settings& second) {
    SCOPED_TRACE(name);
    tiny_.train_until(5, name, first);
    tiny_.train(name, second);
    expect_equal_losses(tiny_ / "whole", tiny_ / name);
  };
  move("to a smaller mesh", on(kFourByTwo), on(two_by_two));
  move("to one device", on(kFourByTwo), on(kOne));
  move("to the native executor", on(kFourByTwo), native);
  move("from the native executor", native, on(kFourByTwo));
  move("from one device", on(kOne), on(kFourByTwo));
}

}  // namespace
}  // namespace graft
