#pragma once
// The model families: for each, how config.json and GGUF metadata map to ModelConfig.
//
// To add a family, add a row to the table in families.cpp, and to ModelConfig and models/model.cpp
// what it computes that no family before it did.

#include <span>
#include <string_view>

#include "models/config.h"

namespace graft {

class ConfigReader;
class GgufFile;

struct Family {
  std::string_view model_type;  // config.json
  // "" if there are no GGUF files of it. Where families share one, files are read as the first.
  std::string_view gguf_architecture;
  std::string_view class_name;  // written to config.json on export
  // What differs from Llama, which is read first.
  void (*read)(ConfigReader& reader, ModelConfig& config);
  bool gguf_permutes_qk = false;  // llama.cpp's converter reorders the rows of q and k
};

std::span<const Family> families();
const Family* find_family(std::string_view model_type);
const Family* find_gguf_family(std::string_view architecture);

}  // namespace graft
