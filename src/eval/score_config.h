// Options of scoring. Does not use LibTorch, because the command line sets them.
#pragma once

#include <cstdint>

namespace halflife::eval {

struct ScoreConfig {
  int64_t piece = 2048;         // Tokens of a row in one forward pass.
  int64_t batch_tokens = 8192;  // Tokens of one forward pass, including padding.
};

}  // namespace halflife::eval
