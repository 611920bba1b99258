#pragma once
// Element types: their names, sizes and conversions.
//
// The names are those of StableHLO (f32, bf16, s32, ...); safetensors has its own, see
// formats/safetensors.h. Low-precision floats are stored as bits and converted with the functions
// below, which round to nearest, ties to even.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace graft {

enum class DType : uint8_t {
  kBool,  // one byte, 0 or 1
  kU4,    // packed, two to a byte, the earlier element in the low nibble
  kS4,
  kU8,
  kS8,
  kU32,
  kS32,
  kS64,
  kF8E4M3FN,
  kF8E5M2,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kF16,
  kBF16,
  kF32,
  kF64,
};

std::string_view dtype_name(DType dtype);                     // "f32"
std::optional<DType> dtype_from_name(std::string_view name);  // of the same names
int dtype_bits(DType dtype);                                  // 4 for the packed types
size_t dtype_bytes(DType dtype, size_t elements);             // bytes of a dense array
bool is_float(DType dtype);
bool is_integer(DType dtype);  // signed or unsigned; not bool

// Conversions between stored bits and f32. Overflow becomes infinity where the type has one, else
// NaN (the *fn and *fnuz forms).
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
float f8_to_f32(DType dtype, uint8_t bits);
uint8_t f32_to_f8(DType dtype, float value);

// Converts n elements from one type to another. Floats go through f32 (f64 only where both ends can
// hold it); integers to integers through s64. Packed 4-bit types are not converted here.
void convert_elements(const void* from, DType from_type, void* to, DType to_type, size_t n);

// The value of dtype nearest to x (identity for f64; ties to even), as a double.
double round_to_dtype(double x, DType dtype);

}  // namespace graft
