#pragma once
// Makes the disk fail: one chosen call among those that change files below a folder.
//
//   FaultyDisk disk(folder, FaultyDisk::Kind::kFull, 7);   // the seventh such call fails
//   EXPECT_THROW(save(), Error);
//   EXPECT_TRUE(disk.failed());
//
// This header defines open, write, fsync, rename, renameat2 and mkdir for the whole program, before
// the C library's, so it belongs into one source file of a test program. Without a FaultyDisk they
// do what they always did.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>

namespace graft::testing {

class FaultyDisk {
 public:
  enum class Kind {
    kFull,        // and stays so
    kIoError,     // once
    kShortWrite,  // half of the bytes, then a full disk
    kReadOnly,    // and stays so
  };

  FaultyDisk(const std::filesystem::path& folder, Kind kind, int64_t call)
      : folder_(folder.string() + "/"), kind_(kind), call_(call) {
    current() = this;
  }
  ~FaultyDisk() { current() = nullptr; }
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;

  int64_t calls() const { return calls_; }
  bool failed() const { return calls_ >= call_; }

  static std::atomic<FaultyDisk*>& current() {
    static std::atomic<FaultyDisk*> disk = nullptr;
    return disk;
  }

  // What the call should do: 0 goes on, -1 fails with errno set, 1 writes half.
  int decide(const std::string& path, bool writes) {
    if (!path.starts_with(folder_)) return 0;
    const int64_t number = ++calls_;
    if (number < call_ || (number > call_ && kind_ == Kind::kIoError)) return 0;
    if (number == call_ && kind_ == Kind::kShortWrite && writes) return 1;
    errno = kind_ == Kind::kIoError ? EIO : kind_ == Kind::kReadOnly ? EROFS : ENOSPC;
    return -1;
  }

 private:
  std::string folder_;
  Kind kind_;
  int64_t call_;
  std::atomic<int64_t> calls_ = 0;
};

inline int decide_for_path(const char* path, bool writes = false) {
  FaultyDisk* disk = FaultyDisk::current();
  return disk == nullptr ? 0 : disk->decide(std::filesystem::absolute(path).string(), writes);
}

inline int decide_for_descriptor(int fd, bool writes) {
  FaultyDisk* disk = FaultyDisk::current();
  if (disk == nullptr) return 0;
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (::readlink(link.c_str(), path.data(), path.size() - 1) < 0) return 0;
  return disk->decide(path.data(), writes);
}

template <typename Function>
Function* real_call(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace graft::testing

extern "C" {

inline __attribute__((used)) int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  static auto* real = graft::testing::real_call<int(const char*, int, ...)>("open");
  if ((flags & O_CREAT) != 0 && graft::testing::decide_for_path(path) < 0) return -1;
  return real(path, flags, mode);
}

inline __attribute__((used)) ssize_t write(int fd, const void* bytes, size_t size) {
  static auto* real = graft::testing::real_call<ssize_t(int, const void*, size_t)>("write");
  const int decision = graft::testing::decide_for_descriptor(fd, true);
  if (decision < 0) return -1;
  return real(fd, bytes, decision > 0 ? size / 2 : size);
}

inline __attribute__((used)) int fsync(int fd) {
  static auto* real = graft::testing::real_call<int(int)>("fsync");
  return graft::testing::decide_for_descriptor(fd, false) < 0 ? -1 : real(fd);
}

inline __attribute__((used)) int rename(const char* from, const char* to) noexcept {
  static auto* real = graft::testing::real_call<int(const char*, const char*)>("rename");
  return graft::testing::decide_for_path(to) < 0 ? -1 : real(from, to);
}

inline __attribute__((used)) int renameat2(int from_fd, const char* from, int to_fd, const char* to,
                                           unsigned int flags) noexcept {
  static auto* real =
      graft::testing::real_call<int(int, const char*, int, const char*, unsigned int)>("renameat2");
  return graft::testing::decide_for_path(to) < 0 ? -1 : real(from_fd, from, to_fd, to, flags);
}

inline __attribute__((used)) int mkdir(const char* path, mode_t mode) noexcept {
  static auto* real = graft::testing::real_call<int(const char*, mode_t)>("mkdir");
  return graft::testing::decide_for_path(path) < 0 ? -1 : real(path, mode);
}
}
