// The maps that biased projections apply to each channel.
#pragma once

#include <cstdint>

namespace halflife::kernels {

enum class ElementMap : uint8_t {
  kIdentity,
  kEluPlusOne,  // e^min(x, 0) + max(x, 0) (Katharopoulos et al., 2020)
  kSilu,        // x / (1 + e^-x)
};

}  // namespace halflife::kernels
