#pragma once
// Inside gguf.cpp's walls: parsing of the bytes of a GGUF file into a table of values and tensors,
// every length proven. Use formats/gguf.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"

namespace graft::internal {

// A metadata value as it lies in the file; arrays point at their first element.
struct GgufValue {
  std::string key;
  GgufKind kind;          // kArray for arrays
  GgufKind element_kind;  // of arrays; the kind again for scalars
  size_t count = 1;       // elements
  size_t begin = 0;       // of the value, from the beginning of the file; an array has a head
  size_t offset = 0;      // of the first element
  size_t end = 0;         // behind the last one
};

struct GgufContents {
  uint32_t version = 0;
  std::vector<GgufValue> values;
  std::vector<GgufTensor> tensors;
};

// Raises Error, with `name` as its place, unless every value and tensor lies inside `bytes`.
GgufContents parse_gguf(std::span<const std::byte> bytes, const std::string& name);

// The string at `offset`, which must be one that parse_gguf has seen; moves `offset` past it.
std::string_view gguf_string_at(std::span<const std::byte> bytes, size_t& offset);

// Bytes of a scalar of this kind; 0 for strings and arrays.
size_t gguf_kind_size(GgufKind kind);

}  // namespace graft::internal
