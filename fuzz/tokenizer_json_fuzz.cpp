// Any text as the tokenizer.json of a folder that is exported: an Error, or metadata that a GGUF
// file can hold.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "text/gguf_tokenizer_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const graft::GgufTokenizer description =
        graft::parse_tokenizer_json(text, "tokenizer.json", 300);
    GRAFT_CHECK(description.tokens.size() == 300);
    graft::GgufMetadata metadata;
    graft::write_gguf_tokenizer(description, metadata);
    GRAFT_CHECK(!metadata.encoded().empty());
  } catch (const graft::Error&) {
    // What a bad file must give.
  }
  return 0;
}
