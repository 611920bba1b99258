// Any bytes as a safetensors file of quantised weights: an Error, or packed matrices whose values
// are finite wherever their scales and codes are.

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "formats/packed_blocks.h"
#include "formats/stored_quantization.h"

namespace {

using graft::StoredQuantization;

void read_all(const graft::SafetensorsFile& file, const StoredQuantization& method) {
  for (const std::string& name : file.names()) {
    // Extents that a configuration might ask for: the file's own, and a fixed pair.
    const graft::Shape& shape = file.find(name)->shape;
    const bool matrix = shape.size() == 2 && shape[0] > 0 && shape[1] > 0;
    const int64_t rows = matrix && shape[1] > 1 ? shape[0] : 8;
    const int64_t columns = matrix && shape[1] > 1 ? shape[1] : 64;
    if (rows > 4096 || columns > 4096) continue;
    try {
      if (!graft::find_stored_layout(file, name, rows, columns, method)) continue;
      const graft::PackedTensor packed =
          graft::read_stored_weight(file, name, rows, columns, method);
      graft::expand_packed(packed.layout, packed.packed);
    } catch (const graft::Error&) {
      // What a damaged weight must give.
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto file =
        graft::SafetensorsFile::open(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
    read_all(file, {StoredQuantization::Method::kBitsAndBytes});
    read_all(file, {StoredQuantization::Method::kFp8});
    read_all(file, {StoredQuantization::Method::kFp8, 2, 16});
  } catch (const graft::Error&) {
    // What a bad file must give.
  }
  return 0;
}
