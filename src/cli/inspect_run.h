#pragma once
// What a run's folder tells: what was trained, where it stands, its curves and artefacts.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace graft {

nlohmann::ordered_json inspect_run(const std::filesystem::path& run);
// The same for a person, with the curves as plots.
std::string describe_run(const std::filesystem::path& run);

nlohmann::ordered_json inspect_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace graft
