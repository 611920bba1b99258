#include "adapters/adapter_file.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "formats/safetensors.h"
#include "support/shared.h"
#include "support/temporary.h"

namespace graft {
namespace {

AdapterPlan small_plan() {
  AdapterConfig config;
  config.r = 3;
  config.target_modules.suffixes = {"q_proj"};
  return plan_adapters(config, {{"model.layers.0.self_attn.q_proj", 16, 5, false, "", ""}});
}

NamedTensors values_of(const AdapterPlan& plan) {
  NamedTensors tensors;
  for (const VariableSpec& v : plan.variables) {
    tensors[v.name] = Tensor::zeros(DType::kF32, v.shape);
    for (int64_t i = 0; i < tensors[v.name].elements(); ++i) {
      tensors[v.name].data<float>()[i] = static_cast<float>(i) - 3.5F;
    }
  }
  return tensors;
}

std::string load_error(const std::filesystem::path& folder, const AdapterPlan& plan) {
  try {
    load_adapter(folder, plan);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(AdapterFile, WhatIsSavedLoadsEqual) {
  const testing::TemporaryFolder folder;
  const AdapterPlan plan = small_plan();
  const NamedTensors saved = values_of(plan);
  AdapterConfig config;
  config.r = 3;
  config.target_modules.suffixes = {"q_proj"};
  save_adapter(folder.path(), config, plan, saved);
  const NamedTensors loaded = load_adapter(folder.path(), plan);
  for (const auto& [name, tensor] : saved) {
    EXPECT_TRUE(std::equal(tensor.span<float>().begin(), tensor.span<float>().end(),
                           loaded.at(name).span<float>().begin()));
  }
  EXPECT_EQ(read_adapter_folder_config(folder.path()).r, 3);
}

TEST(AdapterFile, MissingUnexpectedMisshapenAndNotFiniteTensorsAreNamed) {
  const AdapterPlan plan = small_plan();
  const std::string a = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const std::string b = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
  const Tensor good_a = Tensor::zeros(DType::kF32, {3, 16}),
               good_b = Tensor::zeros(DType::kF32, {5, 3});
  Tensor nan = Tensor::zeros(DType::kF32, {5, 3});
  nan.data<float>()[7] = NAN;
  const auto error = [&](const std::vector<std::pair<std::string, Tensor>>& tensors) {
    const testing::TemporaryFolder folder;
    write_safetensors(folder / "adapter_model.safetensors", tensors);
    return load_error(folder.path(), plan);
  };
  EXPECT_EQ(error({{a, good_a}, {b, good_b}}), "");
  EXPECT_NE(error({{a, good_a}}).find("lora_B"), std::string::npos);
  EXPECT_NE(error({{a, good_a}, {b, good_b}, {"other", good_b}}).find("other"), std::string::npos);
  EXPECT_NE(error({{a, good_b}, {b, good_b}}).find("[3, 16]"), std::string::npos);
  EXPECT_NE(error({{a, good_a}, {b, nan}}).find("nan"), std::string::npos);
}

// PEFT's default: A uniform within 1/sqrt(in), B zero; from the seed and the name alone.
TEST(AdapterFile, InitialValues) {
  const VariableSpec a{
      "model.layers.0.mlp.up_proj.lora_A", VariableKind::kAdapter, DType::kF32, {64, 256}, {}};
  const VariableSpec b{
      "model.layers.0.mlp.up_proj.lora_B", VariableKind::kAdapter, DType::kF32, {32, 64}, {}};
  const Tensor value = initial_adapter_value(a, 7);
  double sum = 0, squares = 0, largest = 0;
  for (float v : value.span<float>()) {
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
    largest = std::max(largest, std::abs(static_cast<double>(v)));
  }
  const double n = static_cast<double>(value.elements()), bound = 1.0 / 16;
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.99 * bound);
  EXPECT_NEAR(sum / n, 0, 4 * bound / std::sqrt(3 * n));
  EXPECT_NEAR(squares / n, bound * bound / 3, 0.05 * bound * bound / 3);
  const Tensor zero = initial_adapter_value(b, 7);
  for (float v : zero.span<float>()) EXPECT_EQ(v, 0);
  const auto first = [&](uint64_t seed, const char* name) {
    VariableSpec named = a;
    named.name = name;
    return initial_adapter_value(named, seed).data<float>()[0];
  };
  EXPECT_EQ(first(7, "x.lora_A"), first(7, "x.lora_A"));
  EXPECT_NE(first(7, "x.lora_A"), first(8, "x.lora_A"));
  EXPECT_NE(first(7, "x.lora_A"), first(7, "y.lora_A"));
}

// The linear layers that the keys of an adapter's file name, with the widths of its factors: enough
// of a model to load an adapter of any family.
std::vector<LinearModule> modules_in(const SafetensorsFile& file) {
  std::map<std::string, LinearModule> modules;
  for (const std::string& key : file.names()) {
    const auto parsed = parse_adapter_key(key);
    if (!parsed) continue;
    LinearModule& module = modules[parsed->module];
    module.name = parsed->module;
    const Shape& shape = file.find(key)->shape;
    if (parsed->part == AdapterPart::kA) module.in = shape[1];
    else module.out = shape[0];
  }
  std::vector<LinearModule> list;
  for (auto& [name, module] : modules) list.push_back(std::move(module));
  return list;
}

// Adapters that PEFT wrote, of every family, read and written back: the same keys, shapes and
// values, and the same text of adapter_config.json.
TEST(AdapterFile, EveryGoldenAdapterIsWrittenBackAsItWas) {
  GRAFT_SHARED_OR_SKIP(root, "golden");
  int64_t seen = 0;
  std::vector<std::filesystem::path> folders = {root / "llama_a_train" / "rslora" / "adapter"};
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.path().filename().string().ends_with("_a"))
      folders.push_back(entry.path() / "adapter");
  }
  for (const std::filesystem::path& folder : folders) {
    SCOPED_TRACE(folder.string());
    ASSERT_TRUE(std::filesystem::exists(folder / "adapter_config.json"));
    ++seen;
    const SafetensorsFile original = SafetensorsFile::open(folder / "adapter_model.safetensors");
    const AdapterConfig config = read_adapter_folder_config(folder);
    const AdapterPlan plan = plan_adapters(config, modules_in(original));
    const testing::TemporaryFolder out;
    save_adapter(out.path(), config, plan, load_adapter(folder, plan));

    EXPECT_EQ(read_text_file(out / "adapter_config.json"),
              read_text_file(folder / "adapter_config.json"));
    const SafetensorsFile again = SafetensorsFile::open(out / "adapter_model.safetensors");
    EXPECT_EQ(again.names(), original.names());
    for (const std::string& key : original.names()) {
      const Tensor a = again.tensor(key), b = original.tensor(key);
      ASSERT_EQ(a.dtype(), b.dtype()) << key;
      ASSERT_EQ(a.shape(), b.shape()) << key;
      EXPECT_TRUE(std::equal(a.bytes(), a.bytes() + a.size_bytes(), b.bytes())) << key;
    }
  }
  EXPECT_GE(seen, 17);
}

}  // namespace
}  // namespace graft
