// Writes a whole step from one process, shard by shard, with the memory of a few blocks: for tools
// that make a step from something else than a running job's arena.
#pragma once

#include <filesystem>
#include <functional>

#include "ckpt/manifest.h"
#include "ckpt/shard_writer.h"

namespace halflife::ckpt {

// `manifest`: state and tensors without fragments; files, fragments, attempt and mesh are filled
// in. `plan(rank)`: what shard `rank` of `num_shards` holds. `out`: the new step folder, published
// by one rename; it must not exist (Error kUsage). Error kCheckpointIo, kNonFinite for a NaN in
// main; nothing is left behind.
void WriteStep(const std::filesystem::path& out, Manifest manifest, int num_shards,
               const std::function<ShardPlan(int rank)>& plan);

}  // namespace halflife::ckpt
