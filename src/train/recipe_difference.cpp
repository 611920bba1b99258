#include "train/recipe_difference.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "formats/sha256.h"
#include "sharding/mesh.h"
#include "train/recipe_keys.h"

namespace graft {
namespace {

struct AllowedKey {
  std::string_view name;
  std::string_view effect;
};

// A key that is not here decides what is computed.
constexpr AllowedKey kAllowed[] = {
    {"model", "the base's tensors are compared instead"},
    {"output_dir", ""},
    {"scan_layers", "the same bits"},
    {"training.max_steps", "schedules that end at 0 now end there later or sooner"},
    {"training.num_train_epochs", "schedules that end at 0 now end there later or sooner"},
    {"training.logging_steps", ""},
    {"training.eval_steps", ""},
    {"training.stats_steps", ""},
    {"training.remat", "the same bits"},
    {"training.save_steps", ""},
    {"training.save_total_limit", ""},
    {"training.save_on_exit", ""},
    {"training.save_base", ""},
    {"training.resume", ""},
    {"training.overwrite_output_dir", ""},
    {"compute.threads", "the same bits"},
    {"compute.executor", "equal in meaning, not in bits"},
    {"compute.isa", "equal in meaning, not in bits"},
    {"export", ""},
};

// Sections whose every key may differ.
constexpr std::array<std::string_view, 2> kAllowedSections = {"mesh", "logical_axis_rules"};

const AllowedKey* find_allowed(std::string_view name) {
  for (const AllowedKey& key : kAllowed) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

bool in_allowed_section(std::string_view name) {
  return std::any_of(kAllowedSections.begin(), kAllowedSections.end(), [&](std::string_view s) {
    return name == s || (name.starts_with(s) && name[s.size()] == '.');
  });
}

bool is_batch_split(std::string_view name) {
  return name == "training.per_device_batch_size" ||
         name == "training.gradient_accumulation_steps" || name == "training.global_batch_size";
}

// Over all devices; nothing where the mesh takes as many as there are.
std::optional<int64_t> rows_in_a_step(const Recipe& recipe) {
  if (recipe.training.global_batch_size) return recipe.training.global_batch_size;
  for (const auto& [axis, size] : recipe.mesh) {
    if (size < 1) return std::nullopt;
  }
  const BatchSplit split = split_batch(recipe, Mesh(recipe.mesh).data_parallel());
  return split.rows * split.accumulation;
}

}  // namespace

std::vector<RecipeDifference> recipe_differences(const Recipe& was, const Recipe& is) {
  std::vector<RecipeDifference> differences;
  const std::optional<int64_t> rows_were = rows_in_a_step(was), rows_are = rows_in_a_step(is);
  const bool known = rows_were && rows_are, as_many = known && *rows_were == *rows_are;
  for (const RecipeKey& key : recipe_keys()) {
    RecipeDifference d{std::string(key.name), key.write(was), key.write(is), false, ""};
    if (d.was == d.is) continue;
    if (const AllowedKey* allowed = find_allowed(key.name)) {
      d.allowed = true;
      d.effect = allowed->effect;
    } else if (key.name == "mesh" && known && !as_many) {
      d.effect = fmt::format("{} rows in a step would be {}", *rows_were, *rows_are);
    } else if (in_allowed_section(key.name)) {
      d.allowed = true;
      d.effect = "equal in meaning, not in bits";
    } else if (is_batch_split(key.name) && as_many) {
      d.allowed = true;
      d.effect = "as many rows in a step: equal in meaning, not in bits";
    }
    differences.push_back(std::move(d));
  }
  return differences;
}

std::string describe(const RecipeDifference& d) {
  return fmt::format("{} was {}, is {} ({}{})", d.key, d.was, d.is,
                     d.allowed ? "allowed" : "refused", d.effect.empty() ? "" : ": " + d.effect);
}

std::string recipe_hash(const Recipe& recipe) {
  std::string text;
  for (const RecipeKey& key : recipe_keys()) {
    if (find_allowed(key.name) != nullptr || in_allowed_section(key.name)) continue;
    text += fmt::format("{}: {}\n", key.name, key.write(recipe));
  }
  return sha256_hex(std::as_bytes(std::span(text)));
}

}  // namespace graft
