// Writes a whole step from one process, shard by shard, with memory for a few blocks. For tools
// that make a step from other sources than the arena of a running job.
#pragma once

#include <filesystem>
#include <functional>

#include "ckpt/manifest.h"
#include "ckpt/shard_writer.h"

namespace halflife::ckpt {

// `manifest` has the state, and tensors without fragments. Files, fragments, attempt and mesh are
// filled in. `plan(rank)` returns the contents of shard `rank` of `num_shards`. `out` is the new
// step folder, which is published by one rename. Throws Error kUsage if it exists, kCheckpointIo,
// or kNonFinite for a NaN in main. After an error nothing is left.
void WriteStep(const std::filesystem::path& out, Manifest manifest, int num_shards,
               const std::function<ShardPlan(int rank)>& plan);

}  // namespace halflife::ckpt
