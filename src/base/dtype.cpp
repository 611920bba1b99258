#include "base/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/error.h"

namespace graft {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array<DTypeInfo, 16> kInfo = {{
    {DType::kBool, "bool", 8},
    {DType::kU4, "u4", 4},
    {DType::kS4, "s4", 4},
    {DType::kU8, "u8", 8},
    {DType::kS8, "s8", 8},
    {DType::kU32, "u32", 32},
    {DType::kS32, "s32", 32},
    {DType::kS64, "s64", 64},
    {DType::kF8E4M3FN, "f8e4m3fn", 8},
    {DType::kF8E5M2, "f8e5m2", 8},
    {DType::kF8E4M3FNUZ, "f8e4m3fnuz", 8},
    {DType::kF8E5M2FNUZ, "f8e5m2fnuz", 8},
    {DType::kF16, "f16", 16},
    {DType::kBF16, "bf16", 16},
    {DType::kF32, "f32", 32},
    {DType::kF64, "f64", 64},
}};

const DTypeInfo& info(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  GRAFT_CHECK(index < kInfo.size() && kInfo[index].dtype == dtype);
  return kInfo[index];
}

// What a narrow floating-point type can hold: significant bits after the leading one, the exponent
// of its smallest normal number, its largest finite value, and what its special codes are.
struct FloatFormat {
  int mantissa_bits;
  int min_exponent;
  double largest;
  bool has_infinity;
  bool has_negative_zero;
};

FloatFormat float_format(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3FN: return {3, -6, 448, false, true};
    case DType::kF8E5M2: return {2, -14, 57344, true, true};
    case DType::kF8E4M3FNUZ: return {3, -7, 240, false, false};
    case DType::kF8E5M2FNUZ: return {2, -15, 57344, false, false};
    case DType::kF16: return {10, -14, 65504, true, true};
    case DType::kBF16: return {7, -126, 0x1.FEp127, true, true};
    default: break;
  }
  GRAFT_CHECK(false, "{} is not a narrow float", dtype_name(dtype));
  return {};
}

// Rounds to the grid of `format`, ties to even; the result is exact in double.
double round_to_format(double x, const FloatFormat& format) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (std::isnan(x)) return x;
  if (std::isinf(x)) return format.has_infinity ? x : nan;
  if (x == 0) return format.has_negative_zero ? x : 0.0;
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const int step = exponent - format.mantissa_bits;
  double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -step)), step);
  if (std::abs(rounded) > format.largest) {
    if (!format.has_infinity) return nan;
    rounded = std::copysign(std::numeric_limits<double>::infinity(), x);
  }
  if (rounded == 0 && !format.has_negative_zero) return 0.0;
  return rounded;
}

template <typename Integer>
double round_to_integer(double x) {
  if (std::isnan(x)) return 0;
  constexpr auto low = static_cast<double>(std::numeric_limits<Integer>::min());
  // For s64 this is 2^63, which is not itself an s64, but no nearer double is one.
  constexpr auto high = static_cast<double>(std::numeric_limits<Integer>::max());
  return std::clamp(std::nearbyint(x), low, high);
}

bool has_infinity(DType dtype) { return dtype == DType::kF8E5M2; }

bool has_negative_zero(DType dtype) { return dtype == DType::kF8E4M3FN || dtype == DType::kF8E5M2; }

// The exponent bias follows from the exponent of the smallest normal number, 1 - bias.
int bias_of(const FloatFormat& format) { return 1 - format.min_exponent; }

float decode_f8(DType dtype, uint8_t bits) {
  const FloatFormat format = float_format(dtype);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const bool negative = (bits & 0x80) != 0;
  const int magnitude = bits & 0x7F;
  if (!has_negative_zero(dtype)) {
    if (bits == 0x80) return nan;
  } else if (has_infinity(dtype)) {
    if (magnitude == 0x7C) {
      const float infinity = std::numeric_limits<float>::infinity();
      return negative ? -infinity : infinity;
    }
    if (magnitude > 0x7C) return negative ? -nan : nan;
  } else if (magnitude == 0x7F) {
    return negative ? -nan : nan;
  }
  const int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  const int exponent = magnitude >> format.mantissa_bits;
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << format.mantissa_bits);
  const int power = std::max(exponent, 1) - bias_of(format) - format.mantissa_bits;
  const float value = std::ldexp(static_cast<float>(significand), power);
  return negative ? -value : value;
}

// All 256 values of one type; decoding is then a load.
using F8Table = std::array<float, 256>;

const F8Table& f8_table(DType dtype) {
  static const auto make = [](DType type) {
    F8Table table;
    for (int i = 0; i < 256; ++i)
      table[static_cast<size_t>(i)] = decode_f8(type, static_cast<uint8_t>(i));
    return table;
  };
  static const F8Table e4m3fn = make(DType::kF8E4M3FN);
  static const F8Table e5m2 = make(DType::kF8E5M2);
  static const F8Table e4m3fnuz = make(DType::kF8E4M3FNUZ);
  static const F8Table e5m2fnuz = make(DType::kF8E5M2FNUZ);
  switch (dtype) {
    case DType::kF8E4M3FN: return e4m3fn;
    case DType::kF8E5M2: return e5m2;
    case DType::kF8E4M3FNUZ: return e4m3fnuz;
    case DType::kF8E5M2FNUZ: return e5m2fnuz;
    default: break;
  }
  GRAFT_CHECK(false, "{} is not an 8-bit float", dtype_name(dtype));
  return e4m3fn;
}

// Conversion goes block by block through one wide type, so that each pair of types needs no code of
// its own.
constexpr size_t kBlock = 512;

template <typename Narrow, typename Wide>
void widen_plain(const void* from, size_t offset, Wide* to, size_t n) {
  const auto* bytes = static_cast<const char*>(from) + offset * sizeof(Narrow);
  for (size_t i = 0; i < n; ++i) {
    Narrow value;
    std::memcpy(&value, bytes + i * sizeof(Narrow), sizeof(Narrow));
    to[i] = static_cast<Wide>(value);
  }
}

template <typename Bits, typename Wide, typename Decode>
void widen_coded(const void* from, size_t offset, Wide* to, size_t n, Decode decode) {
  const auto* bytes = static_cast<const char*>(from) + offset * sizeof(Bits);
  for (size_t i = 0; i < n; ++i) {
    Bits value;
    std::memcpy(&value, bytes + i * sizeof(Bits), sizeof(Bits));
    to[i] = static_cast<Wide>(decode(value));
  }
}

template <typename Wide>
void widen(DType type, const void* from, size_t offset, Wide* to, size_t n) {
  switch (type) {
    case DType::kBool:
      return widen_coded<uint8_t>(from, offset, to, n, [](uint8_t v) { return v != 0; });
    case DType::kU8: return widen_plain<uint8_t>(from, offset, to, n);
    case DType::kS8: return widen_plain<int8_t>(from, offset, to, n);
    case DType::kU32: return widen_plain<uint32_t>(from, offset, to, n);
    case DType::kS32: return widen_plain<int32_t>(from, offset, to, n);
    case DType::kS64: return widen_plain<int64_t>(from, offset, to, n);
    case DType::kF32: return widen_plain<float>(from, offset, to, n);
    case DType::kF64: return widen_plain<double>(from, offset, to, n);
    case DType::kF16: return widen_coded<uint16_t>(from, offset, to, n, f16_to_f32);
    case DType::kBF16: return widen_coded<uint16_t>(from, offset, to, n, bf16_to_f32);
    case DType::kF8E4M3FN:
    case DType::kF8E5M2:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ: {
      const F8Table& table = f8_table(type);
      return widen_coded<uint8_t>(from, offset, to, n, [&](uint8_t v) { return table[v]; });
    }
    case DType::kU4:
    case DType::kS4: break;
  }
  GRAFT_CHECK(false, "{} is packed and is not converted here", dtype_name(type));
}

// Truncates towards zero and saturates; NaN becomes 0.
template <typename Integer, typename Wide>
Integer to_integer(Wide value) {
  if constexpr (std::is_integral_v<Wide>) {
    return static_cast<Integer>(value);
  } else {
    if (std::isnan(value)) return 0;
    const auto wide = static_cast<double>(value);
    if (wide <= static_cast<double>(std::numeric_limits<Integer>::min())) {
      return std::numeric_limits<Integer>::min();
    }
    if (wide >= static_cast<double>(std::numeric_limits<Integer>::max())) {
      return std::numeric_limits<Integer>::max();
    }
    return static_cast<Integer>(wide);
  }
}

template <typename Narrow, typename Wide, typename Encode>
void narrow_with(const Wide* from, void* to, size_t offset, size_t n, Encode encode) {
  auto* bytes = static_cast<char*>(to) + offset * sizeof(Narrow);
  for (size_t i = 0; i < n; ++i) {
    const Narrow value = encode(from[i]);
    std::memcpy(bytes + i * sizeof(Narrow), &value, sizeof(Narrow));
  }
}

template <typename Wide>
void narrow(DType type, const Wide* from, void* to, size_t offset, size_t n) {
  switch (type) {
    case DType::kBool:
      return narrow_with<uint8_t>(from, to, offset, n,
                                  [](Wide v) { return static_cast<uint8_t>(v != 0); });
    case DType::kU8: return narrow_with<uint8_t>(from, to, offset, n, to_integer<uint8_t, Wide>);
    case DType::kS8: return narrow_with<int8_t>(from, to, offset, n, to_integer<int8_t, Wide>);
    case DType::kU32: return narrow_with<uint32_t>(from, to, offset, n, to_integer<uint32_t, Wide>);
    case DType::kS32: return narrow_with<int32_t>(from, to, offset, n, to_integer<int32_t, Wide>);
    case DType::kS64: return narrow_with<int64_t>(from, to, offset, n, to_integer<int64_t, Wide>);
    case DType::kF32:
      return narrow_with<float>(from, to, offset, n, [](Wide v) { return static_cast<float>(v); });
    case DType::kF64:
      return narrow_with<double>(from, to, offset, n,
                                 [](Wide v) { return static_cast<double>(v); });
    case DType::kF16:
      return narrow_with<uint16_t>(from, to, offset, n,
                                   [](Wide v) { return f32_to_f16(static_cast<float>(v)); });
    case DType::kBF16:
      return narrow_with<uint16_t>(from, to, offset, n,
                                   [](Wide v) { return f32_to_bf16(static_cast<float>(v)); });
    case DType::kF8E4M3FN:
    case DType::kF8E5M2:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
      return narrow_with<uint8_t>(from, to, offset, n,
                                  [&](Wide v) { return f32_to_f8(type, static_cast<float>(v)); });
    case DType::kU4:
    case DType::kS4: break;
  }
  GRAFT_CHECK(false, "{} is packed and is not converted here", dtype_name(type));
}

template <typename Wide>
void convert_through(const void* from, DType from_type, void* to, DType to_type, size_t n) {
  std::array<Wide, kBlock> block;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    widen<Wide>(from_type, from, begin, block.data(), count);
    narrow<Wide>(to_type, block.data(), to, begin, count);
  }
}

bool is_narrow_float(DType dtype) { return is_float(dtype) && dtype != DType::kF64; }

}  // namespace

std::string_view dtype_name(DType dtype) { return info(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& each : kInfo) {
    if (each.name == name) return each.dtype;
  }
  return std::nullopt;
}

int dtype_bits(DType dtype) { return info(dtype).bits; }

size_t dtype_bytes(DType dtype, size_t elements) {
  const int bits = dtype_bits(dtype);
  if (bits < 8) return elements / 2 + elements % 2;
  size_t bytes = 0;
  if (__builtin_mul_overflow(elements, static_cast<size_t>(bits / 8), &bytes)) {
    throw Error(fmt::format("an array of {} {} elements is larger than any memory", elements,
                            dtype_name(dtype)));
  }
  return bytes;
}

bool is_float(DType dtype) { return dtype >= DType::kF8E4M3FN; }

bool is_integer(DType dtype) { return dtype >= DType::kU4 && dtype <= DType::kS64; }

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // A NaN keeps its sign and upper payload; the quiet bit keeps it from becoming infinity.
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude < 0x0400u) {
    // Subnormal: a whole number of 2^-24. Not by shifting bits, which would need f32 subnormals
    // that a caller may have switched off.
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  const uint32_t exponent_shift = magnitude >= 0x7C00u ? 0x70000000u : 0x38000000u;
  return std::bit_cast<float>(((magnitude << 13) + exponent_shift) | sign);
}

uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  }
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65536 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14. At 0.5 an f32 counts in 2^-24, as f16 subnormals do: the addition rounds for us.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  magnitude += 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u) >> 13));
}

float f8_to_f32(DType dtype, uint8_t bits) { return f8_table(dtype)[bits]; }

uint8_t f32_to_f8(DType dtype, float value) {
  const FloatFormat format = float_format(dtype);
  GRAFT_CHECK(dtype_bits(dtype) == 8, "{} is not an 8-bit float", dtype_name(dtype));
  const double rounded = round_to_format(value, format);
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(rounded)) {
    if (!has_negative_zero(dtype)) return 0x80;
    return static_cast<uint8_t>(sign | (has_infinity(dtype) ? 0x7E : 0x7F));
  }
  if (std::isinf(rounded)) return static_cast<uint8_t>(sign | 0x7C);
  const double magnitude = std::abs(rounded);
  if (magnitude == 0) return has_negative_zero(dtype) ? sign : 0;
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  // In units of the last place the significand reads as a whole number, its leading one included;
  // that one carries into the exponent field, which is therefore one less.
  const auto significand = static_cast<int>(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const int field = (exponent + bias_of(format) - 1) << format.mantissa_bits;
  return static_cast<uint8_t>(sign | (field + significand));
}

void convert_elements(const void* from, DType from_type, void* to, DType to_type, size_t n) {
  if (from_type == to_type) {
    if (n > 0) std::memcpy(to, from, dtype_bytes(from_type, n));
  } else if (!is_float(from_type) && !is_float(to_type)) {
    convert_through<int64_t>(from, from_type, to, to_type, n);
  } else if (is_narrow_float(from_type) && is_narrow_float(to_type)) {
    convert_through<float>(from, from_type, to, to_type, n);
  } else {
    convert_through<double>(from, from_type, to, to_type, n);
  }
}

double round_to_dtype(double x, DType dtype) {
  switch (dtype) {
    case DType::kF64: return x;
    case DType::kF32: return static_cast<double>(static_cast<float>(x));
    case DType::kBool: return x != 0 ? 1 : 0;
    case DType::kU4: return std::isnan(x) ? 0 : std::clamp(std::nearbyint(x), 0.0, 15.0);
    case DType::kS4: return std::isnan(x) ? 0 : std::clamp(std::nearbyint(x), -8.0, 7.0);
    case DType::kU8: return round_to_integer<uint8_t>(x);
    case DType::kS8: return round_to_integer<int8_t>(x);
    case DType::kU32: return round_to_integer<uint32_t>(x);
    case DType::kS32: return round_to_integer<int32_t>(x);
    case DType::kS64: return round_to_integer<int64_t>(x);
    default: return round_to_format(x, float_format(dtype));
  }
}

}  // namespace graft
