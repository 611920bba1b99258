#include "base/append_file.h"

#include <span>
#include <utility>

namespace graft {

AppendFile::AppendFile(std::filesystem::path path, Begin begin)
    : path_(std::move(path)),
      fd_(begin == Begin::kAnew ? disk::create(path_) : disk::open_for_appending(path_)) {}

void AppendFile::append(std::string_view record) {
  disk::write_all(fd_.get(), std::as_bytes(std::span(record)), path_);
}

void AppendFile::sync() { disk::sync(fd_.get(), path_); }

}  // namespace graft
