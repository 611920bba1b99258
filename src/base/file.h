#pragma once
// Files: mapped for reading, replaced atomically for writing.
//
// A file is written aside, flushed, fsync'd, renamed over its target, and its folder fsync'd: a
// crash at any instant leaves the old file or the new one, whole.

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace graft {

// A read-only mapping of a whole file; an empty file maps to an empty span.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A file that appears under its name only when commit() has returned. Dropped without commit() it
// leaves nothing behind.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  int fd_ = -1;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view text);
std::string read_text_file(const std::filesystem::path& path);  // raises Error naming the path
void make_directories(const std::filesystem::path& path);       // raises Error naming the path

}  // namespace graft
