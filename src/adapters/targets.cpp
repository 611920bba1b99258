#include "adapters/targets.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>
#include <set>

namespace graft {
namespace {

std::regex compile(const std::string& pattern, const std::string& key) {
  try {
    return std::regex(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    throw Error(fmt::format("\"{}\" is not a valid regular expression: {}", pattern, error.what()),
                key);
  }
}

bool has_suffix(const std::string& name, const std::string& suffix) {
  return name == suffix || name.ends_with("." + suffix);
}

std::string leaf(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Matches module names against one selection and says which entry matched.
class Matcher {
 public:
  Matcher(const ModuleSelection& selection, const std::string& key) : selection_(selection) {
    if (selection.expression && *selection.expression != "all-linear") {
      expression_ = compile(*selection.expression, key);
    }
  }

  // Remembers which entries matched.
  std::optional<std::string> match(const std::string& name) {
    const std::optional<std::string> entry = find(name);
    if (entry) used_.insert(selection_.expression ? *selection_.expression : *entry);
    return entry;
  }

  void list_unused(std::vector<std::string>& names, const std::string& key) const {
    std::vector<std::string> entries = selection_.suffixes;
    if (selection_.expression) entries = {*selection_.expression};
    for (const std::string& entry : entries) {
      if (!used_.contains(entry)) names.push_back(key + ": " + entry);
    }
  }

 private:
  std::optional<std::string> find(const std::string& name) const {
    if (selection_.expression) {
      const bool matched = !expression_ || std::regex_match(name, *expression_);
      return matched ? std::optional(leaf(name)) : std::nullopt;
    }
    for (const std::string& suffix : selection_.suffixes) {
      if (has_suffix(name, suffix)) return suffix;
    }
    return std::nullopt;
  }

  const ModuleSelection& selection_;
  std::optional<std::regex> expression_;
  std::set<std::string> used_;
};

std::optional<int64_t> layer_number(const std::string& name) {
  static const std::regex pattern(R"(.*\.[^.]*\.(\d+)\..*)");
  std::smatch match;
  if (!std::regex_match(name, match, pattern)) return std::nullopt;
  return std::stoll(match[1].str());
}

// The overriding patterns in order, each with a note whether it was ever used.
template <typename T>
class Overrides {
 public:
  template <typename Patterns>
  Overrides(const Patterns& patterns, const std::string& key) {
    for (const auto& [pattern, value] : patterns) {
      entries_.push_back({pattern, compile("(.*\\.)?(" + pattern + ")", key), value, false});
    }
  }

  T value(const std::string& name, T fallback) {
    for (Entry& entry : entries_) {
      if (!std::regex_match(name, entry.expression)) continue;
      entry.used = true;
      return entry.value;
    }
    return fallback;
  }

  void list_unused(std::vector<std::string>& names, const std::string& key) const {
    for (const Entry& entry : entries_) {
      if (!entry.used) names.push_back(key + ": " + entry.pattern);
    }
  }

 private:
  struct Entry {
    std::string pattern;
    std::regex expression;
    T value;
    bool used;
  };
  std::vector<Entry> entries_;
};

}  // namespace

AdapterPlan plan_adapters(const AdapterConfig& config, const std::vector<LinearModule>& modules) {
  Matcher targets(config.target_modules, "lora.target_modules");
  Matcher excluded(config.exclude_modules, "lora.exclude_modules");
  Overrides<int64_t> ranks(config.rank_pattern, "lora.rank_pattern");
  Overrides<double> alphas(config.alpha_pattern, "lora.alpha_pattern");

  AdapterPlan plan;
  std::set<int64_t> layers;  // of the targets
  for (const LinearModule& module : modules) {
    const auto target = targets.match(module.name);
    if (!target) continue;
    // A target that matched is not "unmatched" because another rule took its modules out.
    plan.modules_per_target.try_emplace(*target, 0);
    if (!config.exclude_modules.empty() && excluded.match(module.name)) continue;
    if (config.layers_to_transform) {
      const auto layer = layer_number(module.name);
      const auto& wanted = *config.layers_to_transform;
      if (layer) layers.insert(*layer);
      if (!layer || std::find(wanted.begin(), wanted.end(), *layer) == wanted.end()) continue;
    }
    LoraSite site;
    site.rank = ranks.value(module.name, config.r);
    if (site.rank <= 0 || site.rank > (int64_t{1} << 20)) {
      throw Error(fmt::format("rank {} for module \"{}\"", site.rank, module.name), "lora.r",
                  "ranks are positive");
    }
    const double alpha = alphas.value(module.name, config.lora_alpha);
    const double rank = static_cast<double>(site.rank);
    site.scale = config.use_rslora ? alpha / std::sqrt(rank) : alpha / rank;
    site.dropout = config.lora_dropout;
    plan.sites.emplace(module.name, site);
    ++plan.modules_per_target[*target];
    plan.variables.push_back({module.name + ".lora_A",
                              VariableKind::kAdapter,
                              DType::kF32,
                              {site.rank, module.in},
                              {"lora_rank", module.in_axis}});
    plan.variables.push_back({module.name + ".lora_B",
                              VariableKind::kAdapter,
                              DType::kF32,
                              {module.out, site.rank},
                              {module.out_axis, "lora_rank"}});
  }
  for (const std::string& suffix : config.target_modules.suffixes) {
    if (!plan.modules_per_target.contains(suffix)) plan.unmatched_targets.push_back(suffix);
  }
  excluded.list_unused(plan.unmatched_patterns, "lora.exclude_modules");
  for (const int64_t layer : config.layers_to_transform.value_or(std::vector<int64_t>())) {
    if (layers.contains(layer)) continue;
    plan.unmatched_patterns.push_back(fmt::format("lora.layers_to_transform: {}", layer));
  }
  ranks.list_unused(plan.unmatched_patterns, "lora.rank_pattern");
  alphas.list_unused(plan.unmatched_patterns, "lora.alpha_pattern");
  return plan;
}

std::vector<std::string> select_modules(const ModuleSelection& selection,
                                        const std::vector<LinearModule>& modules,
                                        const std::string& key) {
  Matcher matcher(selection, key);
  std::vector<std::string> names;
  std::set<std::string> used;
  for (const LinearModule& module : modules) {
    const auto entry = matcher.match(module.name);
    if (!entry) continue;
    names.push_back(module.name);
    used.insert(*entry);
  }
  for (const std::string& suffix : selection.suffixes) {
    if (!used.contains(suffix)) {
      throw Error(fmt::format("\"{}\" matches no linear layer", suffix), key,
                  "graft inspect lists them");
    }
  }
  if (selection.expression && names.empty()) {
    throw Error(fmt::format("\"{}\" matches no linear layer", *selection.expression), key,
                "graft inspect lists them");
  }
  return names;
}

}  // namespace graft
