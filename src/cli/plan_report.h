#pragma once
// The report of graft plan: one JSON object, and its form for a person.

#include <nlohmann/json.hpp>
#include <string>

#include "train/plan.h"

namespace graft {

// What is planned: target, model, mesh, shape, element type.
nlohmann::ordered_json describe_plan(const PlannedStep& planned, const std::string& target);
// FLOPs by formula and in the graph, and the time that they take at `limit` FLOP/s over all
// devices.
void add_flops(nlohmann::ordered_json& report, const PlannedStep& planned, double graph_flops,
               double limit);
void add_shardings(nlohmann::ordered_json& report, const ShardingTable& table);

std::string format_plan(const nlohmann::ordered_json& report);

}  // namespace graft
