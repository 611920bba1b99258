#pragma once
// Where the trained weights begin, and how they are loaded from there. The first of these that the
// recipe gives: a checkpoint that the run goes on from; training.init_state; lora.init_adapter.
// With none of them an adapter begins fresh, and a full run from the base model.

#include <optional>
#include <string>
#include <vector>

#include "train/resume.h"
#include "train/state.h"

namespace graft {

struct StartingPoint {
  std::filesystem::path folder;          // with the adapter, or with model.safetensors
  std::optional<Checkpoint> checkpoint;  // whose optimiser is taken too
  std::string words;                     // for the audit
};

std::optional<StartingPoint> starting_point(const Recipe& recipe, const ResumePlan& resume);

// Makes the options of the adapter in a folder (rank, alpha, targets, ...) the recipe's. What the
// recipe gives besides must agree: raises Error naming both values. Targets and patterns that the
// recipe gives stay; dropout is always the recipe's.
void take_adapter_options(Recipe& recipe, const std::filesystem::path& folder);

// method full: the trained parameters, as f32. Raises Error naming one that is missing, of another
// shape, or not a parameter of the model.
void load_trained_parameters(ModelState& state, const std::vector<std::string>& trained,
                             const StartingPoint& start);

// The moments of what is trained: zero, or a checkpoint's, which must be exactly those.
void begin_optimizer(ModelState& state, const std::vector<std::string>& trained,
                     const std::optional<Checkpoint>& checkpoint);

// Raises Error naming what differs.
void require_same_base(const BaseIdentity& expected, const BaseIdentity& found,
                       const std::filesystem::path& checkpoint);

}  // namespace graft
