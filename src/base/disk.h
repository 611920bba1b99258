#pragma once
// The system calls by which graft writes to disk: every file of a run passes through here, so that
// each failure becomes an Error that names the path, and tests can make any of the calls fail.
//
//   disk::Descriptor fd = disk::create("runs/a/new.bin");
//   disk::write_all(fd.get(), bytes, "runs/a/new.bin");
//   disk::sync(fd.get(), "runs/a/new.bin");
//   disk::replace_folder("runs/a/.tmp-adapter", "runs/a/adapter");

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace graft::disk {

// Closes a file descriptor at the end of a scope.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }
  int release();

 private:
  int fd_;
};

// Raises Error for the system's error `code` (errno): "cannot write: No space left on device".
[[noreturn]] void fail(const std::string& doing, const std::filesystem::path& path, int code);

int open_retrying(const char* path, int flags, mode_t mode = 0);  // -1 and errno where it fails
Descriptor create(const std::filesystem::path& path);             // anew, for writing
Descriptor open_for_appending(const std::filesystem::path& path);
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);
void sync(int fd, const std::filesystem::path& path);
void close(Descriptor fd, const std::filesystem::path& path);  // raises Error where it fails
void rename(const std::filesystem::path& from, const std::filesystem::path& to);
void remove_all(const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& folder);

std::filesystem::path folder_of(const std::filesystem::path& path);  // "." for a bare name

// Puts a finished folder in the place of `target`, which may hold an older one: at any instant one
// of the two is there, whole.
void replace_folder(const std::filesystem::path& finished, const std::filesystem::path& target);

}  // namespace graft::disk
