#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace graft {
namespace {

using Words4 = std::array<uint32_t, 4>;
using Words2 = std::array<uint32_t, 2>;

// The known-answer vectors published with the paper (Random123, kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Words4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamLayout) {
  Philox random(0x1122334455667788, 9);
  for (uint32_t block = 0; block < 3; ++block) {
    const Words4 lanes = philox4x32({block, 0, 0, 9}, Words2{0x55667788, 0x11223344});
    for (const uint32_t lane : lanes) EXPECT_EQ(random.next_u32(), lane);
  }
}

TEST(Philox, Distributions) {
  Philox random(7, 1);
  const int n = 200000;
  double sum = 0, squares = 0, cubes = 0, uniform = 0;
  for (int i = 0; i < n; ++i) {
    const double x = random.normal();
    sum += x, squares += x * x, cubes += x * x * x;
    const double u = random.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    uniform += u;
  }
  // Five standard deviations of each estimate.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(cubes / n, 0, 5 * std::sqrt(15.0 / n));
  EXPECT_NEAR(uniform / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  std::vector<int> counts(7);
  for (int i = 0; i < n; ++i) ++counts[random.below(7)];
  for (const int count : counts) EXPECT_NEAR(count, n / 7.0, 5 * std::sqrt(n / 7.0));
  EXPECT_EQ(random.below(1), 0u);
}

// From the test vectors of the FNV authors.
TEST(Fnv1a, KnownAnswers) {
  EXPECT_EQ(fnv1a_32(""), 0x811c9dc5u);
  EXPECT_EQ(fnv1a_32("a"), 0xe40c292cu);
  EXPECT_EQ(fnv1a_32("foobar"), 0xbf9cf968u);
  EXPECT_EQ(fnv1a_32("\xff\x00\x00\x01"), fnv1a_32("\xff"));  // a C string ends there
  EXPECT_EQ(fnv1a_32(std::string_view("\0", 1)), 0x050c5d1fu);
}

}  // namespace
}  // namespace graft
