#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace graft {
namespace {

const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(DType, NamesAndSizes) {
  EXPECT_EQ(dtype_name(DType::kBF16), "bf16");
  EXPECT_EQ(dtype_from_name("f8e4m3fnuz"), DType::kF8E4M3FNUZ);
  EXPECT_EQ(dtype_from_name("float32"), std::nullopt);
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_bytes(DType::kF64, 3), 24u);
  EXPECT_EQ(dtype_bytes(DType::kBF16, 3), 6u);
  EXPECT_EQ(dtype_bytes(DType::kU4, 0), 0u);
  EXPECT_EQ(dtype_bytes(DType::kU4, 1), 1u);
  EXPECT_EQ(dtype_bytes(DType::kS4, 8), 4u);
  EXPECT_EQ(dtype_bytes(DType::kS4, 9), 5u);
  EXPECT_EQ(dtype_bytes(DType::kU4, SIZE_MAX), SIZE_MAX / 2 + 1);
  EXPECT_THROW(dtype_bytes(DType::kF32, SIZE_MAX / 2), Error);
  EXPECT_TRUE(is_float(DType::kF8E5M2));
  EXPECT_FALSE(is_float(DType::kS64));
  EXPECT_TRUE(is_integer(DType::kU4));
  EXPECT_FALSE(is_integer(DType::kBool));
}

// Every code of a 16-bit type comes back; a signalling NaN comes back quiet.
template <typename ToFloat, typename FromFloat>
void round_trip_16(ToFloat to_float, FromFloat from_float, uint16_t infinity, uint16_t quiet_bit) {
  for (uint32_t code = 0; code <= 0xFFFF; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float value = to_float(bits);
    const bool nan = (bits & 0x7FFF) > infinity;
    EXPECT_EQ(std::isnan(value), nan);
    EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0);
    const auto expected = static_cast<uint16_t>(nan ? bits | quiet_bit : bits);
    ASSERT_EQ(from_float(value), expected) << code;
  }
}

// Between neighbouring finite codes: the middle goes to the even one, anything past it to the
// nearer.
template <typename ToFloat, typename FromFloat>
void ties_16(ToFloat to_float, FromFloat from_float, uint16_t infinity) {
  for (uint16_t low = 0; low + 1 < infinity; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = to_float(low) + (to_float(high) - to_float(low)) / 2;
    const uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(from_float(middle), even) << low;
    ASSERT_EQ(from_float(-middle), even | 0x8000) << low;
    ASSERT_EQ(from_float(std::nextafter(middle, -kInf)), low);
    ASSERT_EQ(from_float(std::nextafter(middle, kInf)), high);
  }
}

TEST(DType, Bf16EveryCodeRoundTrips) { round_trip_16(bf16_to_f32, f32_to_bf16, 0x7F80, 0x40); }

TEST(DType, Bf16TiesToEven) {
  ties_16(bf16_to_f32, f32_to_bf16, 0x7F80);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3F80);
  // A NaN whose payload lies in the bits that are dropped must not become infinity.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7F800001u)))));
}

TEST(DType, F16EveryCodeRoundTrips) { round_trip_16(f16_to_f32, f32_to_f16, 0x7C00, 0x200); }

TEST(DType, F16TiesToEven) {
  ties_16(f16_to_f32, f32_to_f16, 0x7C00);
  EXPECT_EQ(f16_to_f32(0x3C00), 1.0f);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x7BFF), 65504.0f);
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(1e30f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-kInf), 0xFC00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(kNan))));
}

// The value of a code written out from the definition, apart from the implementation's tables.
double f8_by_definition(DType dtype, int code) {
  const bool e5 = dtype == DType::kF8E5M2 || dtype == DType::kF8E5M2FNUZ;
  const bool fnuz = dtype == DType::kF8E4M3FNUZ || dtype == DType::kF8E5M2FNUZ;
  const int mantissa_bits = e5 ? 2 : 3;
  const int bias = (e5 ? 15 : 7) + (fnuz ? 1 : 0);
  const double sign = code >= 128 ? -1 : 1;
  const int exponent = (code & 127) >> mantissa_bits;
  const double fraction = (code & ((1 << mantissa_bits) - 1)) / std::pow(2.0, mantissa_bits);
  if (fnuz && code == 128) return std::nan("");
  if (dtype == DType::kF8E4M3FN && (code & 127) == 127) return std::nan("");
  if (dtype == DType::kF8E5M2 && exponent == 31) return fraction == 0 ? sign * kInf : std::nan("");
  if (exponent == 0) return sign * fraction * std::pow(2.0, 1 - bias);
  return sign * (1 + fraction) * std::pow(2.0, exponent - bias);
}

class F8Test : public ::testing::TestWithParam<DType> {};

TEST_P(F8Test, EveryCode) {
  const DType dtype = GetParam();
  for (int code = 0; code < 256; ++code) {
    const double expected = f8_by_definition(dtype, code);
    const float value = f8_to_f32(dtype, static_cast<uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(f8_to_f32(dtype, f32_to_f8(dtype, value)))) << code;
      continue;
    }
    EXPECT_EQ(value, expected) << code;
    EXPECT_EQ(std::signbit(value), std::signbit(expected)) << code;
    EXPECT_EQ(f32_to_f8(dtype, value), code);
    EXPECT_EQ(round_to_dtype(expected, dtype), expected);
  }
}

TEST_P(F8Test, TiesToEvenAndOverflow) {
  const DType dtype = GetParam();
  float largest = 0;
  for (int code = 0; code < 127; ++code) {
    const float low = f8_to_f32(dtype, static_cast<uint8_t>(code));
    const float high = f8_to_f32(dtype, static_cast<uint8_t>(code + 1));
    largest = std::max(largest, low);
    if (!std::isfinite(high)) break;
    largest = std::max(largest, high);
    const float middle = (low + high) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(f32_to_f8(dtype, middle), even) << code;
    EXPECT_EQ(f32_to_f8(dtype, std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(f32_to_f8(dtype, std::nextafter(middle, kInf)), code + 1);
    EXPECT_EQ(round_to_dtype(middle, dtype), f8_to_f32(dtype, static_cast<uint8_t>(even)));
  }
  const float beyond = f8_to_f32(dtype, f32_to_f8(dtype, 2 * largest));
  const float from_infinity = f8_to_f32(dtype, f32_to_f8(dtype, -kInf));
  if (dtype == DType::kF8E5M2) {
    EXPECT_EQ(beyond, kInf);
    EXPECT_EQ(from_infinity, -kInf);
  } else {
    EXPECT_TRUE(std::isnan(beyond));
    EXPECT_TRUE(std::isnan(from_infinity));
  }
}

INSTANTIATE_TEST_SUITE_P(All, F8Test,
                         ::testing::Values(DType::kF8E4M3FN, DType::kF8E5M2, DType::kF8E4M3FNUZ,
                                           DType::kF8E5M2FNUZ),
                         [](const auto& each) { return std::string(dtype_name(each.param)); });

TEST(DType, RoundToDtype) {
  EXPECT_EQ(round_to_dtype(1.0 + 0x1p-30, DType::kF32), 1.0);
  EXPECT_EQ(round_to_dtype(0.1, DType::kF64), 0.1);
  // One rounding, not two: through f32 this would become a tie and go down to 1.
  EXPECT_EQ(round_to_dtype(1.0 + 0x1p-8 + 0x1p-40, DType::kBF16), 1.0 + 0x1p-7);
  EXPECT_EQ(round_to_dtype(65520.0, DType::kF16), kInf);
  EXPECT_EQ(round_to_dtype(1e39, DType::kBF16), kInf);
  EXPECT_EQ(round_to_dtype(2.5, DType::kS32), 2.0);
  EXPECT_EQ(round_to_dtype(300.0, DType::kU8), 255.0);
  EXPECT_EQ(round_to_dtype(-9.0, DType::kS4), -8.0);
  for (uint32_t code = 0; code < 0x7C00; ++code) {
    const double value = f16_to_f32(static_cast<uint16_t>(code));
    ASSERT_EQ(round_to_dtype(value, DType::kF16), value);
    ASSERT_EQ(round_to_dtype(value * 1.0001, DType::kF16),
              f16_to_f32(f32_to_f16(static_cast<float>(value * 1.0001))));
  }
}

TEST(DType, ConvertElements) {
  std::vector<float> from(1500);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i) * 0.37f - 100.0f;
  std::vector<uint16_t> half(from.size());
  convert_elements(from.data(), DType::kF32, half.data(), DType::kBF16, from.size());
  std::vector<float> back(from.size());
  convert_elements(half.data(), DType::kBF16, back.data(), DType::kF32, from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(half[i], f32_to_bf16(from[i]));
    ASSERT_EQ(back[i], bf16_to_f32(half[i]));
  }

  const std::vector<int64_t> whole = {-1, 0, 1, (int64_t{1} << 53) + 1, 300};
  std::vector<int32_t> narrow(whole.size());
  convert_elements(whole.data(), DType::kS64, narrow.data(), DType::kS32, whole.size());
  EXPECT_EQ(narrow, (std::vector<int32_t>{-1, 0, 1, 1, 300}));
  std::vector<uint8_t> truth(whole.size());
  convert_elements(whole.data(), DType::kS64, truth.data(), DType::kBool, whole.size());
  EXPECT_EQ(truth, (std::vector<uint8_t>{1, 0, 1, 1, 1}));

  // Towards zero, saturated, NaN to 0; all of it defined behaviour.
  const std::vector<float> wild = {-2.7f, 2.7f, 1e20f, -1e20f, kNan};
  std::vector<int32_t> tamed(wild.size());
  convert_elements(wild.data(), DType::kF32, tamed.data(), DType::kS32, wild.size());
  EXPECT_EQ(tamed, (std::vector<int32_t>{-2, 2, INT32_MAX, INT32_MIN, 0}));

  const std::vector<double> precise = {0.1, 1e300};
  std::vector<double> same(2);
  convert_elements(precise.data(), DType::kF64, same.data(), DType::kF64, 2);
  EXPECT_EQ(same, precise);
  std::vector<float> single(2);
  convert_elements(precise.data(), DType::kF64, single.data(), DType::kF32, 2);
  EXPECT_EQ(single, (std::vector<float>{0.1f, kInf}));
}

}  // namespace
}  // namespace graft
