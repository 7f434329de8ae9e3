// ALiBi's slopes (Press et al., 2022).
//
//   const std::vector<double> slopes = AlibiSlopes(8);  // 1/2, 1/4, ... 1/256
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::model {

// 2^(-8 (h + 1) / H) for H a power of 2; else those of the power below, then every other one of the
// power above, as the authors' code.
std::vector<double> AlibiSlopes(int64_t num_heads);

}  // namespace halflife::model
