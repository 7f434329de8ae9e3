// Formats numbers for people: "3.2 GiB", "12.4k", "1 h 02 min".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace halflife {

std::string HumanBytes(double bytes);
std::string HumanCount(double count);
std::string HumanSeconds(double seconds);
std::string Counted(int64_t count, const std::string& noun);  // "1 file", "12 files"
std::string Fixed(double value, int digits);                  // a fixed number of decimals
// Padded on the right with blanks to `width` bytes.
std::string Padded(std::string text, size_t width);

}  // namespace halflife
