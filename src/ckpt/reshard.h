// Writes a copy of a step, split into shards for another world size. Loading a step does not need
// this. It is for copies that other tools read, and for large numbers of new ranks, each of which
// should find its slice in one file.
#pragma once

#include <filesystem>

#include "ckpt/reader.h"

namespace halflife::ckpt {

// `out` is the folder of the new step, which must not exist and is published by one rename. Makes
// one pass with the memory of a few blocks. Throws Error kCheckpointIo, or kUsage if `out` exists.
void ReshardStep(const StepReader& step, int world_size, const std::filesystem::path& out);

// The hash of every element of every tensor and array, in registration order: it is equal for equal
// states, however they are split into shards.
Hash128 GatheredHash(const StepReader& step);

}  // namespace halflife::ckpt
