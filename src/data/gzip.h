#pragma once
// gzip (RFC 1952) in memory, one or several members in a row.

#include <span>
#include <string>
#include <string_view>

namespace graft {

bool is_gzip(std::string_view bytes);  // by its first bytes

// The unpacked text; raises Error naming `name` where the data is damaged, cut off, followed by
// something else, or unpacks to more than `limit` bytes (a small file can claim any size).
std::string gunzip(std::string_view bytes, const std::string& name, size_t limit = size_t{1} << 36);

}  // namespace graft
