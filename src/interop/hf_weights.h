// Writes weights as `transformers` reads them: one model.safetensors, or numbered shards with an
// index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/safetensors.h"
#include "interop/placement.h"

namespace halflife::interop {

struct WeightToWrite {
  std::string name;
  std::vector<int64_t> shape;  // outermost first
  RangeReader read;
};

// Writes the weights in the given order to an existing folder, rounded to `dtype` (kF32 or kBF16,
// to nearest even). Needs a few MiB of memory. A weight larger than `max_shard_bytes` gets its own
// shard. The bytes are a function of the arguments. Throws kNonFinite if a weight is not finite
// before or after rounding, and kEnvironment if writing fails.
void WriteHfWeights(const std::filesystem::path& folder, const std::vector<WeightToWrite>& weights,
                    ckpt::StoredDType dtype, uint64_t max_shard_bytes);

}  // namespace halflife::interop
