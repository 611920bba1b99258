#pragma once
// The reference data of real tokenizers and chat templates (shared real/templates), and where their
// tokenizers lie.

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "support/shared.h"
#include "text/text_model.h"

namespace graft::testing {

inline const std::string kGoldenDate = "2026-01-15";

struct GoldenFamily {
  std::string name;       // of the file real/templates/<name>.json
  std::string tokenizer;  // folder, relative to the shared root
  std::string jinja;      // template file beside the golden, or empty for the tokenizer's own
};

inline void PrintTo(const GoldenFamily& family, std::ostream* out) { *out << family.name; }

inline std::vector<GoldenFamily> golden_families() {
  return {{"smollm2", "real/smollm2_tokenizer", ""},
          {"qwen3", "tokenizers/qwen3", ""},
          {"gemma3", "tokenizers/gemma3", ""},
          {"llama3", "tokenizers/llama3", ""},
          {"deepseek_v3", "tokenizers/deepseek_v3", ""},
          {"gptoss", "tokenizers/gptoss", "gptoss.jinja"},
          {"llama3_1_template", "tokenizers/llama3", "llama3_1.jinja"}};
}

inline nlohmann::ordered_json read_golden(const std::string& name) {
  std::ifstream file(shared_path("real/templates/" + name + ".json"));
  return nlohmann::ordered_json::parse(file);
}

// Loading a large tokenizer takes a second; each is loaded once.
inline const TextModel& golden_model(const GoldenFamily& family) {
  static std::map<std::string, std::unique_ptr<TextModel>> loaded;
  std::unique_ptr<TextModel>& model = loaded[family.tokenizer + "|" + family.jinja];
  if (!model) {
    const std::filesystem::path jinja =
        family.jinja.empty() ? "" : shared_path("real/templates/" + family.jinja);
    model = std::make_unique<TextModel>(load_text_model(shared_path(family.tokenizer), jinja));
  }
  return *model;
}

inline Conversation golden_conversation(const nlohmann::ordered_json& golden) {
  Conversation conversation;
  conversation.messages = golden.at("messages").dump();
  if (golden.contains("tools") && !golden["tools"].is_null()) {
    conversation.tools = golden["tools"].dump();
  }
  return conversation;
}

inline TemplateSettings golden_settings(const nlohmann::ordered_json& golden,
                                        const nlohmann::ordered_json& fixed_date) {
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  if (golden.contains("variables")) variables = golden["variables"];
  if (fixed_date.is_object() && fixed_date.contains("date_string")) {
    variables["date_string"] = fixed_date["date_string"];
  }
  return {kGoldenDate, variables.dump()};
}

inline std::string family_name(const ::testing::TestParamInfo<GoldenFamily>& info) {
  return info.param.name;
}

}  // namespace graft::testing

#define GRAFT_GOLDEN_OR_SKIP(family)                                              \
  GRAFT_SHARED_OR_SKIP(golden_file, "real/templates/" + (family).name + ".json"); \
  GRAFT_SHARED_OR_SKIP(golden_tokenizer, (family).tokenizer)
