#include "data/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace graft {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;

class Inflater {
 public:
  Inflater() { GRAFT_CHECK(inflateInit2(&stream_, kGzipOnly) == Z_OK); }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  z_stream& stream() { return stream_; }

 private:
  z_stream stream_{};
};

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.substr(0, 2) == "\x1f\x8b"; }

std::string gunzip(std::string_view bytes, const std::string& name, size_t limit) {
  constexpr size_t kChunk = size_t{1} << 20;
  constexpr auto kMostInput = static_cast<size_t>(std::numeric_limits<uInt>::max());
  std::string text;
  Inflater inflater;
  z_stream& stream = inflater.stream();
  size_t consumed = 0;
  while (true) {
    const std::string_view input = bytes.substr(consumed, kMostInput);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
    stream.avail_in = static_cast<uInt>(input.size());
    const size_t filled = text.size();
    text.resize(filled + kChunk);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + filled);
    stream.avail_out = static_cast<uInt>(kChunk);
    const int status = inflate(&stream, Z_NO_FLUSH);
    consumed += input.size() - stream.avail_in;
    text.resize(filled + kChunk - stream.avail_out);
    if (text.size() > limit) {
      throw Error(fmt::format("the gzip data unpacks to more than {} bytes", limit), name,
                  "unpack the file and split it");
    }
    if (status == Z_STREAM_END) {
      if (consumed == bytes.size()) return text;
      if (!is_gzip(bytes.substr(consumed))) {
        throw Error("something that is not gzip follows the gzip data", name);
      }
      inflateReset(&stream);
    } else if (status == Z_BUF_ERROR ||
               (status == Z_OK && consumed == bytes.size() && stream.avail_out != 0)) {
      throw Error("the gzip data is cut off", name, "fetch or write the file again");
    } else if (status != Z_OK) {
      throw Error(fmt::format("the gzip data is damaged ({})",
                              stream.msg != nullptr ? stream.msg : "unknown reason"),
                  name, "fetch or write the file again");
    }
  }
}

}  // namespace graft
