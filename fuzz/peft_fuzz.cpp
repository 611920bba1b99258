// Any text as an adapter_config.json: an Error, or a configuration that survives being written and
// read.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "formats/peft.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  graft::AdapterConfig config;
  try {
    config = graft::parse_adapter_config(text, "fuzz.json");
  } catch (const graft::Error&) {
    return 0;  // what a bad file must give
  }
  const std::string written = graft::format_adapter_config(config);
  const graft::AdapterConfig again = graft::parse_adapter_config(written, "written.json");
  GRAFT_CHECK(graft::format_adapter_config(again) == written);
  return 0;
}
