// Concatenates values into one string.
//
//   Concat("step ", 3, " of ", total);  // how the error and log macros build their text
//   Join(names, ", ");                  // "a, b"
//   Join(actions, ", ", [](const Action& action) { return action.name; });
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

// Joins text(item) of all items, or the items themselves.
template <typename Items, typename Text>
std::string Join(const Items& items, const char* separator, Text text) {
  std::string joined;
  bool first = true;
  for (const auto& item : items) {
    joined += Concat(first ? "" : separator, text(item));
    first = false;
  }
  return joined;
}
template <typename Items>
std::string Join(const Items& items, const char* separator) {
  return Join(
      items, separator, [](const auto& item) -> const auto& { return item; });
}

}  // namespace halflife
