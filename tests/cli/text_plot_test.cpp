#include "cli/text_plot.h"

#include <gtest/gtest.h>

#include <cmath>

namespace graft {
namespace {

TEST(TextPlot, PutsEachValueWhereItBelongs) {
  EXPECT_EQ(text_plot("loss", {{1, 4}, {2, 3}, {3, 2}, {4, 1}, {5, NAN}, {11, 1}}, 11, 4),
            "loss\n"
            "           4 |*\n"
            "             | *\n"
            "             |  *\n"
            "           1 |   *      *\n"
            "             +-----------\n"
            "        step  1    11\n");
  EXPECT_EQ(text_plot("x", {}), "x: no values\n");
}

}  // namespace
}  // namespace graft
