// Any bytes as a safetensors file: an Error, or tensors that can be read to their last byte.

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "formats/safetensors.h"

namespace {

void read_all(std::span<const std::byte> bytes) {
  const auto file = graft::SafetensorsFile::open(bytes, "fuzz.safetensors");
  size_t covered = 0;
  for (const std::string& name : file.names()) {
    covered += file.bytes(name).size();
    if (!file.find(name)->dtype) continue;
    const graft::Tensor tensor = file.tensor(name);
    GRAFT_CHECK(tensor.size_bytes() == file.bytes(name).size());
    tensor.as(graft::DType::kF64);
  }
  GRAFT_CHECK(covered < bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    read_all(std::as_bytes(std::span(data, size)));
  } catch (const graft::Error&) {
    // What a bad file must give.
  }
  return 0;
}
