// Recipes: any text either gives a recipe, which then reads back as itself, or raises graft::Error.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "train/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  graft::Recipe recipe;
  try {
    recipe = graft::parse_recipe(text, "fuzz.yaml");
  } catch (const graft::Error&) {
    return 0;
  }
  graft::resolve_recipe(recipe, "2026-01-15");
  const std::string written = graft::format_recipe(recipe);
  const graft::Recipe again = graft::parse_recipe(written, "resolved.yaml");
  if (graft::format_recipe(again) != written) std::abort();
  return 0;
}
