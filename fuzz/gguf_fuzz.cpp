// Any bytes as a GGUF file: an Error, or values and tensors that can be read to their last byte.

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "formats/gguf.h"

namespace {

template <typename Function>
void allow_error(Function function) {
  try {
    function();
  } catch (const graft::Error&) {
    // What a bad file, or a value of another kind, must give.
  }
}

void read_all(std::span<const std::byte> bytes) {
  const auto file = graft::GgufFile::open(bytes, "fuzz.gguf");
  for (const std::string& key : file.keys()) {
    file.describe(key);
    allow_error([&] { file.get_strings(key); });
    allow_error([&] { file.get_i32s(key); });
    allow_error([&] { file.get_f32s(key); });
    allow_error([&] { file.get_u32(key); });
    allow_error([&] { file.get_f32(key); });
  }
  for (const graft::GgufTensor& tensor : file.tensors()) {
    GRAFT_CHECK(file.blocks(tensor).size_bytes() == tensor.size);
    allow_error([&] { file.dequantize(tensor); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allow_error([&] { read_all(std::as_bytes(std::span(data, size))); });
  return 0;
}
