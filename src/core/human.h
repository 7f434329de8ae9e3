// Formats numbers as text: for people ("3.2 GiB", "12.4k", "1 h 02 min") and exactly.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>

namespace halflife {

std::string HumanBytes(double bytes);
std::string HumanCount(double count);
std::string HumanSeconds(double seconds);
std::string Counted(int64_t count, const std::string& noun);  // "1 file", "12 files"
std::string Fixed(double value, int digits);                  // a fixed number of decimals
// Pads the text with blanks on the right to `width` bytes.
std::string Padded(std::string text, size_t width);

// Writes a number with the fewest digits that read back as the same number. Used for files of
// options and scores.
template <typename Float>
std::string ShortestText(Float value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

}  // namespace halflife
