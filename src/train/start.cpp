#include "train/start.h"

#include <set>

#include "formats/safetensors.h"
#include "train/step.h"

namespace graft {
namespace {

namespace fs = std::filesystem;

StartingPoint initial_state(const fs::path& path) {
  if (!fs::exists(path)) {
    throw Error("there is no such folder", path.string(), "correct training.init_state");
  }
  const bool weights_alone =
      !fs::exists(path / kManifestName) &&
      (fs::exists(path / "adapter_config.json") || fs::exists(path / "model.safetensors") ||
       fs::exists(path / "model.safetensors.index.json"));
  if (weights_alone) return {path, std::nullopt, fmt::format("the weights in {}", path.string())};
  Checkpoint checkpoint = open_checkpoint_or_run(path);
  StartingPoint start{
      checkpoint.folder, std::nullopt,
      fmt::format("the weights and the optimiser of {}, at step 0", checkpoint.folder.string())};
  start.checkpoint = std::move(checkpoint);
  return start;
}

void require_shape(const std::string& name, const Tensor& value, const Shape& shape,
                   const fs::path& where) {
  if (value.shape() == shape) return;
  throw Error(fmt::format("\"{}\" has shape {}, this run asks for {}", name,
                          to_string(value.shape()), to_string(shape)),
              where.string(), "the model, the rank or the targets are not those of the checkpoint");
}

NamedTensors stored_parameters(const StartingPoint& start) {
  if (start.checkpoint) return start.checkpoint->tensors("params");
  const SafetensorsFile file = SafetensorsFile::open(start.folder);
  NamedTensors tensors;
  for (const std::string& name : file.names()) tensors.emplace(name, file.tensor(name));
  return tensors;
}

}  // namespace

std::optional<StartingPoint> starting_point(const Recipe& recipe, const ResumePlan& resume) {
  if (resume.checkpoint) {
    StartingPoint start{resume.checkpoint->folder, resume.checkpoint,
                        fmt::format("step {} of the checkpoint {}", resume.step(),
                                    resume.checkpoint->folder.string())};
    return start;
  }
  if (!recipe.training.init_state.empty()) return initial_state(recipe.training.init_state);
  if (!recipe.init_adapter.empty()) {
    return StartingPoint{recipe.init_adapter, std::nullopt,
                         fmt::format("the adapter in {}", recipe.init_adapter)};
  }
  return std::nullopt;
}

void take_adapter_options(Recipe& recipe, const fs::path& folder) {
  const AdapterConfig stored = read_adapter_folder_config(folder);
  const auto take = [&](const char* key, auto& option, const auto& found) {
    if (recipe.given(key) && option != found) {
      throw Error(
          fmt::format("{} is {} in the recipe and {} in {}", key, option, found, folder.string()),
          recipe.where(key), "leave it out, or begin from another adapter");
    }
    option = found;
  };
  AdapterConfig& lora = recipe.lora;
  take("lora.r", lora.r, stored.r);
  take("lora.lora_alpha", lora.lora_alpha, stored.lora_alpha);
  take("lora.use_rslora", lora.use_rslora, stored.use_rslora);
  if (!recipe.given("lora.target_modules")) lora.target_modules = stored.target_modules;
  if (!recipe.given("lora.exclude_modules")) lora.exclude_modules = stored.exclude_modules;
  if (!recipe.given("lora.layers_to_transform")) {
    lora.layers_to_transform = stored.layers_to_transform;
  }
  if (!recipe.given("lora.rank_pattern")) lora.rank_pattern = stored.rank_pattern;
  if (!recipe.given("lora.alpha_pattern")) lora.alpha_pattern = stored.alpha_pattern;
  lora.layers_pattern = stored.layers_pattern;
}

void load_trained_parameters(ModelState& state, const std::vector<std::string>& trained,
                             const StartingPoint& start) {
  const NamedTensors stored = stored_parameters(start);
  for (const auto& [name, value] : stored) {
    if (state.tensors.contains(name)) continue;
    throw Error(fmt::format("\"{}\" is no parameter of this model", name), start.folder.string());
  }
  for (const std::string& name : trained) {
    const auto it = stored.find(name);
    if (it == stored.end()) {
      throw Error(fmt::format("the trained parameter \"{}\" is missing", name),
                  start.folder.string(), "training.trainable is not that of the checkpoint");
    }
    require_shape(name, it->second, state.tensors.at(name).shape(), start.folder);
    state.tensors[name] = it->second.as(DType::kF32).clone();
  }
}

void begin_optimizer(ModelState& state, const std::vector<std::string>& trained,
                     const std::optional<Checkpoint>& checkpoint) {
  const NamedTensors stored = checkpoint ? checkpoint->tensors("optimizer") : NamedTensors();
  std::set<std::string> used;
  for (const std::string& variable : trained) {
    const Shape& shape = state.tensors.at(variable).shape();
    for (const std::string& name : {moment1_name(variable), moment2_name(variable)}) {
      if (!checkpoint) {
        state.tensors[name] = Tensor::zeros(DType::kF32, shape);
        continue;
      }
      const auto it = stored.find(name);
      if (it == stored.end()) {
        throw Error(fmt::format("the optimiser's \"{}\" is missing", name),
                    checkpoint->folder.string());
      }
      require_shape(name, it->second, shape, checkpoint->folder);
      state.tensors[name] = it->second.as(DType::kF32).clone();
      used.insert(name);
    }
  }
  for (const auto& [name, value] : stored) {
    if (used.contains(name)) continue;
    throw Error(fmt::format("the optimiser holds \"{}\", which this run does not train", name),
                checkpoint->folder.string());
  }
}

void require_same_base(const BaseIdentity& expected, const BaseIdentity& found,
                       const fs::path& checkpoint) {
  const std::vector<std::string> lines = base_differences(expected, found);
  if (lines.empty()) return;
  std::string shown;
  for (size_t i = 0; i < lines.size() && i < 3; ++i) shown += (i > 0 ? "; " : "") + lines[i];
  if (lines.size() > 3) shown += fmt::format("; and {} more", lines.size() - 3);
  throw Error(fmt::format("the base model {} is not the one that the checkpoint was trained on "
                          "({}): {}",
                          found.path, expected.path, shown),
              checkpoint.string(), "give the same base model");
}

}  // namespace graft
