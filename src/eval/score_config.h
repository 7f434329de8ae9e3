// What scoring is told, without LibTorch: the command line fills it in.
#pragma once

#include <cstdint>

namespace halflife::eval {

struct ScoreConfig {
  int64_t piece = 2048;         // tokens of a row in one forward
  int64_t batch_tokens = 8192;  // of one forward, padding included
};

}  // namespace halflife::eval
