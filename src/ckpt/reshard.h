// Writes a step anew with the cut points of another world size. A load reshards by itself; this is
// for copies that other tools read, and for large numbers of new ranks, each of which should find
// its slice in one file.
#pragma once

#include <filesystem>

#include "ckpt/reader.h"

namespace halflife::ckpt {

// `out`: the new step folder, published by one rename; it must not exist. One pass with the memory
// of a few blocks. Throws Error kCheckpointIo, or kUsage where `out` exists.
void ReshardStep(const StepReader& step, int world_size, const std::filesystem::path& out);

// The hash of every element of every tensor and kind, in registration order: it is equal for equal
// states, however they are split into shards.
Hash128 GatheredHash(const StepReader& step);

}  // namespace halflife::ckpt
