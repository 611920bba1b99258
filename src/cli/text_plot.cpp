#include "cli/text_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace graft {

std::string text_plot(const std::string& title,
                      const std::vector<std::pair<double, double>>& points, int columns, int rows) {
  const auto width = static_cast<size_t>(columns), height = static_cast<size_t>(rows);
  std::vector<double> sums(width, 0), counts(width, 0);
  const double first = points.empty() ? 0 : points.front().first;
  const double last = points.empty() ? 0 : points.back().first;
  for (const auto& [x, y] : points) {
    if (!std::isfinite(y)) continue;
    const double share = last > first ? (x - first) / (last - first) : 0;
    const auto column = static_cast<size_t>(std::lround(share * static_cast<double>(width - 1)));
    sums[column] += y;
    counts[column] += 1;
  }
  double low = INFINITY, high = -INFINITY;
  for (size_t c = 0; c < width; ++c) {
    if (counts[c] == 0) continue;
    low = std::min(low, sums[c] / counts[c]);
    high = std::max(high, sums[c] / counts[c]);
  }
  if (low > high) return title + ": no values\n";
  std::vector<std::string> grid(height, std::string(width, ' '));
  for (size_t c = 0; c < width; ++c) {
    if (counts[c] == 0) continue;
    const double share = high > low ? (sums[c] / counts[c] - low) / (high - low) : 0.5;
    const auto row =
        static_cast<size_t>(std::lround((1 - share) * static_cast<double>(height - 1)));
    grid[row][c] = '*';
  }
  std::string text = title + "\n";
  for (size_t r = 0; r < height; ++r) {
    const std::string label = r == 0            ? fmt::format("{:.4g}", high)
                              : r == height - 1 ? fmt::format("{:.4g}", low)
                                                : std::string();
    const std::string line = fmt::format("  {:>10} |{}", label, grid[r]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  text += fmt::format("  {:>10} +{:-<{}}\n", "", "", width);
  return text + fmt::format("  {:>10}  {:<{}.6g}{:.6g}\n", "step", first, width - 6, last);
}

}  // namespace graft
