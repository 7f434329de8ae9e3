// Options of batched decoding. This header does not use LibTorch, because the command line sets
// them.
#pragma once

#include <cstdint>

namespace halflife::infer {

struct PrefixConfig {
  int64_t max_bytes = int64_t{1} << 30;  // Bytes of the kept states. 0: keeps none.
  int64_t chunk = 256;                   // Only beginnings of whole chunks are kept.
};

struct BatchConfig {
  int64_t max_texts = 32;  // Number of texts that are read or continued at the same time.
  PrefixConfig prefix;     // prefix.chunk is also the number of prompt tokens per forward pass.
};

}  // namespace halflife::infer
