// Writes weights as `transformers` reads them: model.safetensors, or numbered shards with their
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

// In the order given, into an existing folder, rounded to `dtype` (kF32 or kBF16, to nearest even)
// with the memory of a few MiB. A weight larger than `max_shard_bytes` has a shard of its own.
// Bytes are a function of the arguments. Error kNonFinite for a weight that is, or becomes by
// rounding, not finite; kEnvironment where writing fails.
void WriteHfWeights(const std::filesystem::path& folder, const std::vector<WeightToWrite>& weights,
                    ckpt::StoredDType dtype, uint64_t max_shard_bytes);

}  // namespace halflife::interop
