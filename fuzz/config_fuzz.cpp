// A config.json is read, or refused with an Error; whatever is read has the shapes it promises.

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "models/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const graft::ModelConfig config =
        graft::parse_model_config({reinterpret_cast<const char*>(data), size}, "config.json");
    GRAFT_CHECK(!config.layers.empty() && !config.ropes.empty());
    GRAFT_CHECK(config.head_dim > 0 && config.num_key_value_heads > 0);
    for (const graft::LayerConfig& layer : config.layers) GRAFT_CHECK(layer.window > 0);
  } catch (const graft::Error&) {
  }
  return 0;
}
