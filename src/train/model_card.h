#pragma once
// The model card of a run's artefacts: a README.md that says what was trained, from what, on what,
// how, and how well.

#include <filesystem>
#include <string>
#include <string_view>

#include "train/recipe.h"

namespace graft {

// From the run's folder: its recipe and, where it is there, metrics.jsonl. `format` is what the
// card lies beside, as graft export names it ("peft", "gguf").
std::string model_card(const std::filesystem::path& run, const Recipe& recipe,
                       std::string_view format);

}  // namespace graft
