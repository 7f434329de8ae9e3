#pragma once

#include <string>
#include <string_view>

namespace halflife::data {

// Unicode's normalisation form C of valid UTF-8.
std::string NormalizeNfc(std::string_view text);

// True where text is certainly in form C already: nothing in it lies at or above U+0300, where the
// first character stands that composition can touch.
bool IsPlainlyNfc(std::string_view text);

}  // namespace halflife::data
