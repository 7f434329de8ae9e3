// The constant decays of lightning attention, which differ by head and layer.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::model {

struct LayerNumber {
  int64_t index = 0, count = 1;  // l, counted from 0, of L
};

// ln of the decay of head h of H: -2^(-8 (h + 1) / H) (1 - l / (L - 1 + 1e-5) + 1e-5), as in
// transformers' MiniMax. The last layer hardly forgets.
std::vector<double> MiniMaxLogDecays(int64_t num_heads, const LayerNumber& layer);
// -(8 / H) (1 - l / L) h, as in fla's operation. Head 0 never forgets.
std::vector<double> LinearLogDecays(int64_t num_heads, const LayerNumber& layer);

}  // namespace halflife::model
