#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "support/temporary.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(File, MapsWholeFile) {
  TemporaryFolder folder;
  std::ofstream(folder / "a") << "hello";
  const auto file = MappedFile::open(folder / "a");
  EXPECT_EQ(file->bytes().size(), 5u);
  EXPECT_EQ(static_cast<char>(file->bytes()[4]), 'o');
  std::ofstream(folder / "empty");
  EXPECT_TRUE(MappedFile::open(folder / "empty")->bytes().empty());
}

TEST(File, OpenNamesThePath) {
  TemporaryFolder folder;
  for (const auto& open : {+[](const fs::path& p) { MappedFile::open(p); },
                           +[](const fs::path& p) { read_text_file(p); }}) {
    try {
      open(folder / "missing.bin");
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("missing.bin"));
      EXPECT_THAT(error.what(), HasSubstr("No such file"));
    }
    EXPECT_THROW(open(folder.path()), Error);
  }
}

TEST(File, APipeIsNotWaitedFor) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(MappedFile::open(folder / "pipe"), Error);
}

TEST(File, ADeviceIsWrittenToAndNotReplaced) {
  TemporaryFolder folder;
  write_file_atomically("/dev/null", "nothing");
  struct stat status {};
  ASSERT_EQ(::stat("/dev/null", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  EXPECT_THROW(write_file_atomically("/dev/full", "nothing"), Error);
  // A link to a device as well.
  std::filesystem::create_symlink("/dev/null", folder / "link");
  write_file_atomically(folder / "link", "nothing");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_THROW(write_file_atomically(folder.path(), "nothing"), Error);
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"link"});
}

TEST(File, AtomicFileReplacesWhole) {
  TemporaryFolder folder;
  std::ofstream(folder / "out") << "old contents";
  ::chmod((folder / "out").c_str(), 0640);
  {
    AtomicFile file(folder / "out");
    file.write("ne");
    EXPECT_EQ(read_text_file(folder / "out"), "old contents");
    file.write("w");
    EXPECT_EQ(read_text_file(folder / "out"), "old contents");
    file.commit();
    EXPECT_EQ(read_text_file(folder / "out"), "new");
  }
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"out"}));
  struct stat status {};
  ASSERT_EQ(::stat((folder / "out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
}

TEST(File, DroppedAtomicFileLeavesNothing) {
  TemporaryFolder folder;
  {
    AtomicFile file(folder / "out");
    file.write("half");
    EXPECT_EQ(names_in(folder.path()).size(), 1u);
    EXPECT_FALSE(fs::exists(folder / "out"));
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(File, TwoWritersOfOneFileDoNotMix) {
  TemporaryFolder folder;
  AtomicFile first(folder / "out");
  AtomicFile second(folder / "out");
  first.write("first");
  second.write("second, longer");
  second.commit();
  first.commit();
  EXPECT_EQ(read_text_file(folder / "out"), "first");
  EXPECT_EQ(names_in(folder.path()).size(), 1u);
}

TEST(File, CannotWriteIsAnError) {
  TemporaryFolder folder;
  EXPECT_THROW(AtomicFile(folder / "no/such/folder"), Error);
  EXPECT_THROW(AtomicFile(folder.path() / ""), Error);
  fs::create_directory(folder / "taken");
  EXPECT_THROW(AtomicFile(folder / "taken"), Error);  // a folder is not replaced
}

TEST(File, TextAndFolders) {
  TemporaryFolder folder;
  make_directories(folder / "a/b/c");
  make_directories(folder / "a/b/c");
  const std::string text = std::string(200000, 'x') + '\0' + "end";
  write_file_atomically(folder / "a/b/c/t", text);
  EXPECT_EQ(read_text_file(folder / "a/b/c/t"), text);
  EXPECT_THROW(make_directories(folder / "a/b/c/t/d"), Error);
  EXPECT_THROW(make_directories(folder / "a/b/c/t"), Error);
}

}  // namespace
}  // namespace graft
