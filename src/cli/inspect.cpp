// graft inspect PATH [--json]: what a model, GGUF, adapter, checkpoint or run is.

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "adapters/adapter_file.h"
#include "base/error.h"
#include "checkpoint/manifest.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/inspect_run.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "models/layout.h"
#include "models/weights.h"

namespace graft {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

Json tensor_row(const std::string& name, std::string_view type, const Shape& shape, size_t bytes) {
  return {{"name", name}, {"type", type}, {"shape", shape}, {"bytes", bytes}};
}

Json safetensors_tensors(const fs::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Json tensors = Json::array();
  for (const std::string& name : file.names()) {
    const SafetensorsEntry& e = *file.find(name);
    tensors.push_back(tensor_row(name, e.type, e.shape, e.size));
  }
  return tensors;
}

Json describe_config(const ModelConfig& c) {
  Json windows = Json::array();
  for (const LayerConfig& layer : c.layers) {
    windows.push_back(layer.window == kNoWindow ? Json(nullptr) : Json(layer.window));
  }
  Json linears = Json::array();
  for (const LinearModule& m : layer_layout(c, 0).linears) linears.push_back(m.name);
  int64_t parameters = 0;
  for (const VariableSpec& v : base_parameters(c)) parameters += element_count(v.shape);
  return {{"model_type", c.model_type},
          {"parameters", parameters},
          {"layers", c.layers.size()},
          {"hidden_size", c.hidden_size},
          {"intermediate_size", c.intermediate_size},
          {"attention_heads", c.num_attention_heads},
          {"key_value_heads", c.num_key_value_heads},
          {"head_dim", c.head_dim},
          {"vocab_size", c.vocab_size},
          {"tied_embeddings", c.tie_word_embeddings},
          {"windows", windows},
          {"linear_modules", linears}};
}

// Which matrices are stored packed: counted by scheme, embedding and head apart.
void add_packed(Json& j, const BaseWeights& weights, const ModelConfig& config) {
  std::map<std::string, int64_t> schemes;
  for (const LinearModule& m : all_linears(config)) {
    if (const auto layout = weights.packed(m.name + ".weight")) ++schemes[layout->scheme()];
  }
  Json apart = Json::object();
  for (const char* name : {kEmbeddingName, kHeadName}) {
    if (const auto layout = weights.packed(name)) apart[name] = layout->scheme();
  }
  if (!schemes.empty() || !apart.empty()) {
    j["quantization"] = {{"modules", schemes}, {"stored_apart", apart}};
  }
}

// Whether graft can train the model, and if not, why.
void add_model(Json& j, const fs::path& path) {
  try {
    const ModelConfig config = read_model_config(path);
    j["model"] = describe_config(config);
    add_packed(j, BaseWeights::open(path, config), config);
    j["supported"] = true;
  } catch (const Error& e) {
    j["supported"] = false;
    j["reason"] = e.what();
  }
}

Json inspect_gguf(const fs::path& path) {
  const GgufFile file = GgufFile::open(path);
  Json j = {{"kind", "gguf"}, {"path", path.string()}};
  add_model(j, path);
  Json metadata = Json::object();
  for (const std::string& key : file.keys()) metadata[key] = file.describe(key);
  j["metadata"] = std::move(metadata);
  Json tensors = Json::array();
  for (const GgufTensor& t : file.tensors()) {
    tensors.push_back(tensor_row(t.name, t.info().name, t.shape, t.size));
  }
  j["tensors"] = std::move(tensors);
  return j;
}

Json inspect_adapter(const fs::path& path) {
  const AdapterConfig config = read_adapter_folder_config(path);
  Json tensors = safetensors_tensors(path / "adapter_model.safetensors");
  int64_t parameters = 0;
  std::set<std::string> modules;
  for (const Json& t : tensors) {
    parameters += element_count(t["shape"].get<Shape>());
    if (const auto key = parse_adapter_key(t["name"].get<std::string>()))
      modules.insert(key->module);
  }
  return {{"kind", "adapter"},
          {"path", path.string()},
          {"base_model", config.base_model_name_or_path.value_or("")},
          {"r", config.r},
          {"lora_alpha", config.lora_alpha},
          {"use_rslora", config.use_rslora},
          {"modules", modules.size()},
          {"parameters", parameters},
          {"tensors", std::move(tensors)}};
}

Json inspect_model_folder(const fs::path& path) {
  Json j = {{"kind", "model"}, {"path", path.string()}};
  add_model(j, path);
  if (fs::exists(path / "model.safetensors") || fs::exists(path / "model.safetensors.index.json")) {
    j["tensors"] = safetensors_tensors(path);
  }
  return j;
}

Json inspect(const fs::path& path) {
  if (!fs::exists(path)) throw Error("there is no such file or folder", path.string());
  if (is_gguf(path)) return inspect_gguf(path);
  if (fs::exists(path / kManifestName)) return inspect_checkpoint(path);
  if (fs::exists(path / "adapter_config.json")) return inspect_adapter(path);
  if (fs::exists(path / "recipe.resolved.yaml")) return inspect_run(path);
  if (fs::exists(path / "config.json")) return inspect_model_folder(path);
  if (path.extension() == ".safetensors") {
    return {
        {"kind", "safetensors"}, {"path", path.string()}, {"tensors", safetensors_tensors(path)}};
  }
  throw Error("this is no model, GGUF, adapter or run", path.string(),
              "give a folder with config.json, adapter_config.json or recipe.resolved.yaml, or a "
              ".gguf file");
}

// For a person: values a line each, long tables shortened.
std::string for_a_person(const Json& j) {
  std::string text;
  for (const auto& [key, value] : j.items()) {
    if (key == "tensors") {
      size_t bytes = 0;
      for (const Json& t : value) bytes += t["bytes"].get<size_t>();
      text +=
          fmt::format("tensors: {} ({:.1f} MB)\n", value.size(), static_cast<double>(bytes) / 1e6);
    } else if (value.is_object()) {
      text += key + ":\n";
      for (const auto& [inner, v] : value.items())
        text += fmt::format("  {}: {}\n", inner, v.dump());
    } else {
      text +=
          fmt::format("{}: {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return text;
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  struct Options {
    std::string path;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("inspect", "Say what a model, GGUF, adapter, checkpoint or run is");
  command->add_option("PATH", options->path, "A folder or file")->required()->check(not_empty());
  command->add_flag("--json", options->json, "One JSON object on stdout");
  command->callback([options] {
    const Json j = inspect(options->path);
    if (!options->json && j["kind"] == "run") return print_text(describe_run(options->path));
    if (options->json) print_json(nlohmann::json(j));
    else print_text(for_a_person(j));
  });
}

}  // namespace graft
