// docs/ir.md lists exactly the operations that exist.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "base/file.h"
#include "ir/primitives.h"

namespace graft {
namespace {

const std::filesystem::path kSource = GRAFT_SOURCE_DIR;

// The rows of the table under a heading, each a list of cells without the spaces around them.
std::vector<std::vector<std::string>> table_under(const std::string& heading) {
  const std::string text = read_text_file(kSource / "docs" / "ir.md");
  const size_t begin = text.find("\n## " + heading + "\n");
  if (begin == std::string::npos) return {};
  std::istringstream lines(text.substr(begin + 1, text.find("\n## ", begin + 1) - begin));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    std::vector<std::string> cells;
    std::istringstream parts(line.substr(1));
    for (std::string cell; std::getline(parts, cell, '|');) {
      const size_t first = cell.find_first_not_of(' ');
      cells.push_back(cell.substr(first, cell.find_last_not_of(' ') + 1 - first));
    }
    rows.push_back(cells);
  }
  return rows;
}

TEST(Document, ListsThePrimitivesInOrder) {
  std::vector<std::string> documented, existing;
  for (const auto& row : table_under("Primitives")) {
    ASSERT_EQ(row.size(), 3u) << row[0];
    EXPECT_NE(row[2].find('`'), std::string::npos) << row[0] << " names no StableHLO operation";
    documented.push_back(row[0]);
  }
  for (const Op* op : primitives()) existing.push_back("`" + std::string(op->name) + "`");
  EXPECT_THAT(documented, ::testing::ElementsAreArray(existing));
}

TEST(Document, EveryPrimitiveIsWhole) {
  std::set<std::string_view> names;
  for (const Op* op : primitives()) {
    EXPECT_TRUE(names.insert(op->name).second) << op->name << " is listed twice";
    EXPECT_TRUE(op->primitive) << op->name;
    EXPECT_NE(op->infer, nullptr) << op->name;
    EXPECT_EQ(op->decompose, nullptr) << op->name;
  }
}

TEST(Document, ListsTheComposites) {
  std::set<std::string> documented, existing;
  for (const auto& row : table_under("Composites")) {
    ASSERT_EQ(row.size(), 2u) << row[0];
    documented.insert(row[0]);
  }
  // Operations are the only things in src/ops that are defined with a .name.
  const std::string mark = ".name = \"";
  for (const auto& file : std::filesystem::directory_iterator(kSource / "src" / "ops")) {
    if (file.path().extension() != ".cpp") continue;
    const std::string text = read_text_file(file.path());
    for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
      const size_t begin = at + mark.size();
      existing.insert("`" + text.substr(begin, text.find('"', begin) - begin) + "`");
    }
  }
  EXPECT_THAT(documented, ::testing::ContainerEq(existing));
}

}  // namespace
}  // namespace graft
