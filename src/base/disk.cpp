#include "base/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace graft::disk {
namespace {

std::string remedy_for(int code) {
  if (code == ENOSPC || code == EDQUOT) return "free some disk space";
  if (code == EACCES || code == EPERM || code == EROFS) return "check the permissions";
  return "";
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int Descriptor::release() { return std::exchange(fd_, -1); }

void fail(const std::string& doing, const std::filesystem::path& path, int code) {
  throw Error(fmt::format("{}: {}", doing, std::generic_category().message(code)), path.string(),
              remedy_for(code));
}

int open_retrying(const char* path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

Descriptor create(const std::filesystem::path& path) {
  Descriptor fd(open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  if (fd.get() < 0) fail("cannot write", path, errno);
  return fd;
}

Descriptor open_for_appending(const std::filesystem::path& path) {
  Descriptor fd(open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666));
  if (fd.get() < 0) fail("cannot write", path, errno);
  return fd;
}

void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("cannot write", path, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void sync(int fd, const std::filesystem::path& path) {
  if (::fsync(fd) != 0) fail("cannot flush", path, errno);
}

void close(Descriptor fd, const std::filesystem::path& path) {
  if (::close(fd.release()) != 0) fail("cannot close", path, errno);
}

void rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("cannot replace", to, errno);
}

void remove_all(const std::filesystem::path& path) {
  std::error_code code;
  std::filesystem::remove_all(path, code);
  if (code) fail("cannot remove", path, code.value());
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor fd(open_retrying(folder.c_str(), O_RDONLY | O_DIRECTORY));
  if (fd.get() < 0) fail("cannot open the folder", folder, errno);
  // Some file systems have nothing to flush for a folder and say so with EINVAL.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) fail("cannot flush the folder", folder, errno);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

void replace_folder(const std::filesystem::path& finished, const std::filesystem::path& target) {
  std::error_code ignored;
  if (std::filesystem::exists(target, ignored)) {
    if (::renameat2(AT_FDCWD, finished.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      disk::remove_all(finished);  // which is the old one now
    } else if (errno == EINVAL || errno == ENOSYS) {
      // A file system that cannot exchange: the old one goes aside for an instant.
      const std::filesystem::path aside = finished.string() + ".old";
      disk::remove_all(aside);
      disk::rename(target, aside);
      disk::rename(finished, target);
      disk::remove_all(aside);
    } else {
      fail("cannot replace", target, errno);
    }
  } else {
    disk::rename(finished, target);
  }
  sync_folder(folder_of(target));
}

}  // namespace graft::disk
