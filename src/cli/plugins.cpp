// graft plugins install NAME...
// graft plugins list [--json]

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "pjrt/plugin.h"
#include "pjrt/wheels.h"

namespace graft {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const pjrt::Option& option) {
  return std::visit([](const auto& value) { return Json(value); }, option);
}

// What a plugin offers, or why it does not load.
Json describe(const pjrt::PluginKind& kind) {
  Json entry = {{"name", kind.name},
                {"executor", "pjrt:" + kind.alias},
                {"description", kind.description},
                {"folder", pjrt::plugin_folder(kind).string()},
                {"installed", pjrt::is_installed(kind)}};
  if (!pjrt::is_installed(kind)) {
    entry["install"] = "graft plugins install " + kind.name;
    return entry;
  }
  entry["path"] = pjrt::find_plugin(kind.name).string();
  try {
    const auto plugin = pjrt::Plugin::load(pjrt::find_plugin(kind.name));
    entry["sha256"] = plugin->sha256();
    entry["api_version"] = fmt::format("{}.{}", plugin->api_major(), plugin->api_minor());
    entry["extensions"] = plugin->extensions();
    Json attributes = Json::object();
    for (const auto& [name, value] : plugin->attributes()) attributes[name] = json_of(value);
    entry["attributes"] = attributes;
  } catch (const Error& error) {
    entry["error"] = error.what();
  }
  return entry;
}

void list(bool json) {
  Json plugins = Json::array();
  for (const pjrt::PluginKind& kind : pjrt::plugin_kinds()) plugins.push_back(describe(kind));
  if (json) {
    print_json({{"folder", pjrt::plugins_folder().string()}, {"plugins", plugins}});
    return;
  }
  std::string text;
  for (const Json& plugin : plugins) {
    const std::string name = plugin["name"];
    if (!plugin["installed"]) {
      text += fmt::format("{:8} not installed: {}\n", name, std::string(plugin["install"]));
    } else if (plugin.contains("error")) {
      text += fmt::format("{:8} does not load: {}\n", name, std::string(plugin["error"]));
    } else {
      text +=
          fmt::format("{:8} PJRT {}, {} extensions, {}\n", name, std::string(plugin["api_version"]),
                      plugin["extensions"].size(), std::string(plugin["path"]));
    }
  }
  print_text(text);
}

void install(const std::vector<std::string>& names) {
  for (const std::string& name : names) pjrt::plugin_kind(name);  // all are known, before any
  for (const std::string& name : names) {
    info("plugin {}: fetching", name);
    const bool fetched = pjrt::install_plugin(name);
    info("plugin {}: {} {}", name, fetched ? "installed in" : "is there already:",
         pjrt::plugin_folder(pjrt::plugin_kind(name)).string());
  }
}

}  // namespace

void add_plugins_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("plugins", "Fetch and list PJRT plugins: XLA for CPUs, GPUs and TPUs");
  command->require_subcommand(1);
  auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* fetch = command->add_subcommand(
      "install", "Fetch plugins with pip, pinned and checked by their hashes");
  fetch->add_option("names", *names, "cpu, cuda13, tpu")->required();
  fetch->callback([names] { install(*names); });
  auto json = std::make_shared<bool>(false);
  CLI::App* show = command->add_subcommand("list", "What is installed, and what it offers");
  show->add_flag("--json", *json, "One JSON value on stdout");
  show->callback([json] { list(*json); });
}

}  // namespace graft
