// UTF-8 as Unicode defines it, without overlong forms, surrogates and anything above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace halflife::data {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Returns the position of the first byte that does not begin a valid character; npos if the whole
// text is valid.
size_t FindInvalidUtf8(std::string_view text);

// Replaces each maximal part of an invalid sequence by one U+FFFD, as browsers do (WHATWG encoding
// standard).
std::string ReplaceInvalidUtf8(std::string_view text);

// Returns the number of bytes at the end (0 to 3) that begin an incomplete character.
size_t IncompleteUtf8Tail(std::string_view text);

}  // namespace halflife::data
