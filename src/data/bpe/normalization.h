#pragma once

#include <string>
#include <string_view>

namespace halflife::data {

// Normalizes valid UTF-8 to Unicode normalization form C.
std::string NormalizeNfc(std::string_view text);

// Returns true only if `text` is certainly in form C: all its characters are below U+0300, the
// first character that composition can affect.
bool IsPlainlyNfc(std::string_view text);

}  // namespace halflife::data
