// UTF-8, as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace halflife::data {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// The first byte that begins no valid character; npos where all of it is valid.
size_t FindInvalidUtf8(std::string_view text);

// Each maximal part of an invalid sequence becomes one U+FFFD, as browsers do (WHATWG encoding
// standard).
std::string ReplaceInvalidUtf8(std::string_view text);

// Bytes at the end (0 to 3) that begin a character whose rest may still come.
size_t IncompleteUtf8Tail(std::string_view text);

}  // namespace halflife::data
