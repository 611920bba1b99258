#pragma once
// Curves drawn with characters, for a terminal.
//
//   print_text(text_plot("loss", {{1, 4.7}, {2, 4.1}, ...}));

#include <string>
#include <utility>
#include <vector>

namespace graft {

// Points in ascending x, as x and y. Columns that hold several show their mean; the axes are
// labelled with the least and the largest values. Not finite ones are left out.
std::string text_plot(const std::string& title,
                      const std::vector<std::pair<double, double>>& points, int columns = 60,
                      int rows = 8);

}  // namespace graft
