#include "core/philox.h"

#include <cmath>
#include <numbers>

namespace halflife {

NormalPair ToNormal(uint32_t u, uint32_t v) {
  // (u + 0.5) / 2^32 is in (0, 1), so the logarithm is finite.
  const double radius = std::sqrt(-2.0 * std::log((u + 0.5) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * ((v + 0.5) * 0x1p-32);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace halflife
