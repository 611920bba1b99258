#pragma once
// UTF-8: is a text valid, and where is it not.
//
// Valid as RFC 3629 says: no overlong forms, no surrogates, nothing above U+10FFFF.
//
//   if (size_t at = find_invalid_utf8(text); at != std::string_view::npos) ... text[at] starts no
//   character

#include <cstddef>
#include <string_view>

namespace graft {

// The offset of the first byte that begins no valid character, or npos.
size_t find_invalid_utf8(std::string_view text);

// The number of characters (code points) of a valid text.
size_t count_characters(std::string_view text);

// The longest prefix of a valid text that has at most `bytes` bytes and ends between two
// characters.
std::string_view utf8_prefix(std::string_view text, size_t bytes);

}  // namespace graft
