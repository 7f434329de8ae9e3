// ALiBi's slopes (Press et al., 2022).
//
//   const std::vector<double> slopes = AlibiSlopes(8);  // 1/2, 1/4, ... 1/256
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::model {

// Returns 2^(-8 (h + 1) / H) for each head h if H is a power of 2. Otherwise, returns the slopes of
// the next lower power of 2, followed by every other slope of the next higher power, as the
// authors' code does.
std::vector<double> AlibiSlopes(int64_t num_heads);

}  // namespace halflife::model
