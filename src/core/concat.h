// Concat("step ", 3, " of ", total) -> one string; what error and log macros build their text with.
#pragma once

#include <sstream>
#include <string>

namespace halflife {

template <typename... Pieces>
std::string Concat(const Pieces&... pieces) {
  std::ostringstream out;
  if constexpr (sizeof...(pieces) > 0) (out << ... << pieces);
  return std::move(out).str();
}

}  // namespace halflife
