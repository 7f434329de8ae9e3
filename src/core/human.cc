#include "core/human.h"

#include <cmath>
#include <cstdint>
#include <cstdio>

namespace halflife {
namespace {

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char text[64];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

}  // namespace

std::string Fixed(double value, int digits) { return Format("%.*f", digits, value); }

std::string Padded(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string HumanBytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 5) {
    bytes /= 1024;
    ++unit;
  }
  return Format(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

std::string HumanCount(double count) {
  const char* units[] = {"", "k", "M", "B", "T"};
  int unit = 0;
  while (std::abs(count) >= 999.95 && unit < 4) {
    count /= 1000;
    ++unit;
  }
  const bool is_small_fraction = std::abs(count) < 9.95 && count != std::floor(count);
  return Format(unit > 0 ? "%.1f%s" : is_small_fraction ? "%.2g%s" : "%.0f%s", count, units[unit]);
}

std::string Counted(int64_t count, const std::string& noun) {
  return Format("%lld ", static_cast<long long>(count)) + noun + (count == 1 ? "" : "s");
}

std::string HumanSeconds(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(seconds));
  if (total < 60) return Format("%lld s", static_cast<long long>(total));
  if (total < 3600) {
    return Format("%lld min %02lld s", static_cast<long long>(total / 60),
                  static_cast<long long>(total % 60));
  }
  return Format("%lld h %02lld min", static_cast<long long>(total / 3600),
                static_cast<long long>(total % 3600 / 60));
}

}  // namespace halflife
