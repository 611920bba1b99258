#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/disk.h"
#include "base/error.h"

namespace graft {
namespace {

using disk::Descriptor;
using disk::fail;
using disk::folder_of;
using disk::open_retrying;

struct stat checked_regular(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail("cannot read", path, errno);
  if (S_ISDIR(status.st_mode)) throw Error("is a folder, not a file", path.string());
  return status;
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
  const Descriptor fd(open_retrying(path.c_str(), O_RDONLY | O_NONBLOCK));
  if (fd.get() < 0) fail("cannot open", path, errno);
  const struct stat status = checked_regular(fd.get(), path);
  if (!S_ISREG(status.st_mode)) throw Error("is not a regular file", path.string());
  std::shared_ptr<MappedFile> file(new MappedFile());
  file->path_ = path;
  const auto size = static_cast<size_t>(status.st_size);
  if (size > 0) {
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) fail("cannot map", path, errno);
    file->data_ = static_cast<const std::byte*>(data);
    file->size_ = size;
  }
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

AtomicFile::AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
  if (target_.filename().empty()) throw Error("is not a file name", target_.string());
  struct stat old {};
  const bool replaces = ::stat(target_.c_str(), &old) == 0;
  if (replaces && S_ISDIR(old.st_mode)) throw Error("is a folder, not a file", target_.string());
  // A device or a pipe is written to, never replaced; /dev/stdout may be a link to any file.
  if (replaces && (!S_ISREG(old.st_mode) || target_.parent_path() == "/dev")) {
    fd_ = open_retrying(target_.c_str(), O_WRONLY);
    if (fd_ < 0) fail("cannot write", target_, errno);
    return;
  }
  // In the same folder, since a rename cannot cross file systems. The name is taken by creating it.
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = folder_of(target_) /
                 fmt::format(".{}.{}-{}.tmp", target_.filename().string(), ::getpid(), attempt);
    fd_ = open_retrying(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd_ < 0 && errno != EEXIST) fail("cannot write", target_, errno);
  }
  if (replaces) {
    // A replaced file keeps its permissions; where that is not allowed, the default will do.
    [[maybe_unused]] const int ignored = ::fchmod(fd_, old.st_mode & 07777);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  GRAFT_CHECK(fd_ >= 0, "write after commit");
  disk::write_all(fd_, bytes, target_);
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  GRAFT_CHECK(fd_ >= 0, "commit twice");
  if (temporary_.empty()) return disk::close(Descriptor(std::exchange(fd_, -1)), target_);
  disk::sync(fd_, target_);
  disk::close(Descriptor(std::exchange(fd_, -1)), target_);
  disk::rename(temporary_, target_);
  temporary_.clear();
  disk::sync_folder(folder_of(target_));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

std::string read_text_file(const std::filesystem::path& path) {
  const Descriptor fd(open_retrying(path.c_str(), O_RDONLY));
  if (fd.get() < 0) fail("cannot open", path, errno);
  checked_regular(fd.get(), path);
  // Read to the end rather than to the reported size, so that pipes and /proc work too.
  std::string text;
  size_t used = 0;
  for (;;) {
    if (text.size() - used < (size_t{1} << 16)) text.resize(text.size() + used + (size_t{1} << 16));
    const ssize_t count = ::read(fd.get(), text.data() + used, text.size() - used);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot read", path, errno);
    if (count == 0) break;
    used += static_cast<size_t>(count);
  }
  text.resize(used);
  return text;
}

void make_directories(const std::filesystem::path& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) fail("cannot create the folder", path, code.value());
  if (!std::filesystem::is_directory(path, code)) throw Error("is not a folder", path.string());
}

}  // namespace graft
