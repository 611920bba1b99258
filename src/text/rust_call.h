#pragma once
// C++ manners for the C interface of the Rust library: owned results, and Error for failures.
//
//   RustBytes out;
//   rust_call(graft_parquet_to_jsonl(path.data(), path.size(), out.get(), error.get()), error,
//   path);

#include <string>
#include <string_view>

#include "base/error.h"
#include "text/rust_api.h"

namespace graft {

// Bytes that the library gave, freed with this object.
class RustBytes {
 public:
  RustBytes() = default;
  ~RustBytes() {
    if (bytes_.data != nullptr) graft_bytes_free(bytes_);
  }
  RustBytes(const RustBytes&) = delete;
  RustBytes& operator=(const RustBytes&) = delete;

  graft_bytes* get() { return &bytes_; }
  std::string_view view() const {
    return bytes_.size == 0 ? std::string_view() : std::string_view(bytes_.data, bytes_.size);
  }

 private:
  graft_bytes bytes_{nullptr, 0};
};

// Raises the message of a call that failed; `where` is the file or thing it was about.
inline void rust_call(int status, const RustBytes& error, std::string_view where,
                      std::string_view remedy = "") {
  if (status != 0) throw Error(std::string(error.view()), std::string(where), std::string(remedy));
}

}  // namespace graft
