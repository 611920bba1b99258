#include "models/rope_scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace graft {
namespace {

TEST(Rope, DefaultFrequencies) {
  const RopeConfig rope = resolve_rope({.theta = 10000}, 8, "test");
  ASSERT_EQ(rope.inverse_frequencies.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(rope.inverse_frequencies[i], std::pow(10000.0, -2.0 * static_cast<double>(i) / 8),
                1e-6 * rope.inverse_frequencies[i]);
  }
  EXPECT_EQ(rope.attention_factor, 1);
}

TEST(Rope, LinearDividesEachFrequency) {
  const RopeConfig plain = resolve_rope({}, 16, "test");
  const RopeConfig scaled = resolve_rope({.type = "linear", .factor = 4}, 16, "test");
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_FLOAT_EQ(scaled.inverse_frequencies[i], plain.inverse_frequencies[i] / 4);
  }
}

// Short wavelengths stay, long ones are divided, and between them the change is monotone.
TEST(Rope, Llama3KeepsHighFrequenciesAndDividesLowOnes) {
  RopeParameters p{.type = "llama3", .theta = 500000, .factor = 8};
  p.low_freq_factor = 1;
  p.high_freq_factor = 4;
  p.original_max_position_embeddings = 8192;
  const RopeConfig scaled = resolve_rope(p, 128, "test");
  const RopeConfig plain = resolve_rope({.theta = 500000}, 128, "test");
  double last = 1;
  bool between = false;
  for (size_t i = 0; i < 64; ++i) {
    const double inv = plain.inverse_frequencies[i];
    const double ratio = scaled.inverse_frequencies[i] / inv,
                 wavelength = 2 * std::numbers::pi / inv;
    if (wavelength < 2048) {
      EXPECT_FLOAT_EQ(static_cast<float>(ratio), 1);
    } else if (wavelength > 8192) {
      EXPECT_FLOAT_EQ(static_cast<float>(ratio), 0.125F);
    } else {
      const double s = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(ratio, (1 - s) / 8 + s, 1e-6);
      between = true;
    }
    EXPECT_LE(ratio, last + 1e-6);
    last = ratio;
  }
  EXPECT_TRUE(between);
}

TEST(Rope, YarnFactorAndTruncation) {
  RopeParameters p{.type = "yarn", .theta = 10000, .factor = 4};
  p.original_max_position_embeddings = 1024;
  const RopeConfig scaled = resolve_rope(p, 64, "test");
  EXPECT_NEAR(scaled.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  const RopeConfig plain = resolve_rope({}, 64, "test");
  EXPECT_FLOAT_EQ(scaled.inverse_frequencies[0], plain.inverse_frequencies[0]);
  EXPECT_FLOAT_EQ(scaled.inverse_frequencies[31], plain.inverse_frequencies[31] / 4);
  p.truncate = false;
  EXPECT_NE(resolve_rope(p, 64, "test").inverse_frequencies, scaled.inverse_frequencies);
  p.mscale = p.mscale_all_dim = 0.7;
  EXPECT_EQ(resolve_rope(p, 64, "test").attention_factor, 1);
  p.attention_factor = 1.25;
  EXPECT_EQ(resolve_rope(p, 64, "test").attention_factor, 1.25);
}

TEST(Rope, UnknownTypesAndBadNumbersAreRefused) {
  for (const char* type : {"dynamic", "longrope", "su"}) {
    try {
      resolve_rope({.type = type, .factor = 2}, 8, "config.json");
      FAIL() << type;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(type), std::string::npos);
    }
  }
  EXPECT_THROW(resolve_rope({.theta = 0}, 8, ""), Error);
  EXPECT_THROW(resolve_rope({}, 7, ""), Error);
  EXPECT_THROW(resolve_rope({.type = "linear", .factor = NAN}, 8, ""), Error);
}

}  // namespace
}  // namespace graft
