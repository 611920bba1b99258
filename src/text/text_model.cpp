#include "text/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "text/gguf_tokenizer.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// "default" and perhaps "tool_use": the sources by name, each with the file it is from.
using Sources = std::map<std::string, std::pair<std::string, std::string>>;

json read_if_there(const fs::path& path) {
  return fs::exists(path) ? read_json_file(path) : json::object();
}

// Special tokens are texts, or objects with the text in "content".
std::optional<std::string> token_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return std::nullopt;
}

void collect_special_tokens(const json& object, std::map<std::string, std::string>& tokens) {
  if (!object.is_object()) return;
  for (const auto& [key, value] : object.items()) {
    const bool is_nested = key == "extra_special_tokens" || key == "model_specific_special_tokens";
    if (is_nested) collect_special_tokens(value, tokens);
    if (!key.ends_with("_token") || key.starts_with("add_")) continue;
    if (const std::optional<std::string> text = token_text(value)) tokens.emplace(key, *text);
  }
}

void collect_templates(const json& config, const std::string& file, Sources& sources) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return;
  if (found->is_string()) {
    sources["default"] = {found->get<std::string>(), file};
    return;
  }
  const auto refuse = [&] {
    throw Error("chat_template must be a text or a list of named texts", file);
  };
  if (!found->is_array()) refuse();
  for (const json& entry : *found) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
        !entry.contains("template") || !entry["template"].is_string()) {
      refuse();
    }
    sources[entry["name"].get<std::string>()] = {entry["template"].get<std::string>(), file};
  }
}

Sources read_templates(const fs::path& folder, const json& config) {
  Sources sources;
  collect_templates(config, (folder / "tokenizer_config.json").string(), sources);
  const fs::path legacy = folder / "chat_template.json";
  if (fs::exists(legacy)) collect_templates(read_json_file(legacy), legacy.string(), sources);
  const fs::path own = folder / "chat_template.jinja";
  if (fs::exists(own)) sources["default"] = {read_text_file(own), own.string()};
  const fs::path tools = folder / "additional_chat_templates" / "tool_use.jinja";
  if (fs::exists(tools)) sources["tool_use"] = {read_text_file(tools), tools.string()};
  return sources;
}

void compile_templates(const Sources& sources, const fs::path& template_file, TextModel& model) {
  const auto compile = [&](const std::string& source, const std::string& where) {
    return ChatTemplate::compile(source, where, model.special_tokens);
  };
  if (!template_file.empty()) {
    model.chat_template = compile(read_text_file(template_file), template_file.string());
    return;
  }
  if (const auto found = sources.find("default"); found != sources.end()) {
    model.chat_template = compile(found->second.first, found->second.second);
  }
  if (const auto found = sources.find("tool_use"); found != sources.end()) {
    model.tool_template = compile(found->second.first, found->second.second);
  }
}

void set_ids(TextModel& model) {
  const auto id_of = [&](const char* name) -> std::optional<int32_t> {
    const auto token = model.special_tokens.find(name);
    if (token == model.special_tokens.end()) return std::nullopt;
    return model.tokenizer.token_to_id(token->second);
  };
  model.bos_id = id_of("bos_token");
  model.eos_id = id_of("eos_token");
  model.pad_id = id_of("pad_token");
  model.unk_id = id_of("unk_token");
}

void observe_added_tokens(TextModel& model) {
  const std::vector<int32_t> bare = model.tokenizer.encode("a", false);
  const std::vector<int32_t> full = model.tokenizer.encode("a", true);
  if (full.size() <= bare.size()) return;
  model.adds_bos = model.bos_id && full.front() == *model.bos_id;
  model.adds_eos = model.eos_id && full.back() == *model.eos_id;
}

void add_stop_ids(const json& config, const std::string& file, TextModel& model) {
  const auto found = config.find("eos_token_id");
  if (found == config.end() || found->is_null()) return;
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      throw Error("eos_token_id must be a token id or a list of them", file);
    }
    model.stop_ids.push_back(id.get<int32_t>());
  }
}

void finish_stop_ids(TextModel& model) {
  if (model.eos_id) model.stop_ids.push_back(*model.eos_id);
  std::sort(model.stop_ids.begin(), model.stop_ids.end());
  model.stop_ids.erase(std::unique(model.stop_ids.begin(), model.stop_ids.end()),
                       model.stop_ids.end());
}

TextModel load_folder(const fs::path& folder, const fs::path& template_file) {
  const fs::path tokenizer_path = folder / "tokenizer.json";
  if (!fs::exists(tokenizer_path)) {
    const bool is_sentence_piece = fs::exists(folder / "tokenizer.model");
    throw Error("the folder has no tokenizer.json", folder.string(),
                is_sentence_piece ? "tokenizer.model alone is not read: save the tokenizer with "
                                    "transformers' fast tokenizers, which writes tokenizer.json"
                                  : "give a model folder or a .gguf file");
  }
  TextModel model(Tokenizer::from_file(tokenizer_path));
  const fs::path config_path = folder / "tokenizer_config.json";
  const json config = read_if_there(config_path);
  collect_special_tokens(config, model.special_tokens);
  collect_special_tokens(read_if_there(folder / "special_tokens_map.json"), model.special_tokens);
  compile_templates(read_templates(folder, config), template_file, model);
  set_ids(model);
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!model.stop_ids.empty()) break;
    add_stop_ids(read_if_there(folder / name), (folder / name).string(), model);
  }
  finish_stop_ids(model);
  observe_added_tokens(model);
  return model;
}

}  // namespace

const ChatTemplate& TextModel::template_for(const Conversation& conversation) const {
  if (tool_template && !conversation.tools.empty()) return *tool_template;
  if (chat_template) return *chat_template;
  throw Error("the model has no chat template", "",
              "give one with data.chat_template (or --chat-template FILE)");
}

bool has_tokenizer(const fs::path& path) {
  if (fs::is_directory(path)) return fs::exists(path / "tokenizer.json");
  if (path.extension() != ".gguf") return false;
  // "none" is how a file says that it has none.
  return GgufFile::open(path).find_string("tokenizer.ggml.model").value_or("none") != "none";
}

TextModel load_text_model(const fs::path& path, const fs::path& template_file) {
  if (fs::is_directory(path)) return load_folder(path, template_file);
  if (!fs::exists(path)) throw Error("there is no such file or folder", path.string());
  if (path.filename() == "tokenizer.json") return load_folder(path.parent_path(), template_file);
  if (path.extension() != ".gguf") {
    throw Error("not a model: neither a folder nor a .gguf file", path.string());
  }
  return text_model_from_gguf(read_gguf_tokenizer(GgufFile::open(path)), template_file);
}

TextModel text_model_from_gguf(const GgufTokenizer& description, const fs::path& template_file) {
  std::string text = tokenizer_json(description);
  TextModel model(Tokenizer::from_json(text, description.where));
  model.tokenizer_json = std::move(text);
  model.bos_id = description.bos_id;
  model.eos_id = description.eos_id;
  model.pad_id = description.pad_id;
  model.unk_id = description.unk_id;
  const std::array<std::pair<const char*, std::optional<int32_t>>, 4> named = {
      {{"bos_token", model.bos_id},
       {"eos_token", model.eos_id},
       {"pad_token", model.pad_id},
       {"unk_token", model.unk_id}}};
  for (const auto& [name, id] : named) {
    if (id) model.special_tokens.emplace(name, description.tokens[static_cast<size_t>(*id)]);
  }
  Sources sources;
  if (!description.chat_template.empty()) {
    sources["default"] = {description.chat_template,
                          description.where + " (tokenizer.chat_template)"};
  }
  compile_templates(sources, template_file, model);
  if (description.eot_id) model.stop_ids.push_back(*description.eot_id);
  finish_stop_ids(model);
  observe_added_tokens(model);
  return model;
}

}  // namespace graft
