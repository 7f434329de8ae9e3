// Writes a number with the fewest digits that read back as the same number. Used for files of
// options and scores.
#pragma once

#include <charconv>
#include <string>

namespace halflife {

template <typename Float>
std::string ShortestText(Float value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

}  // namespace halflife
