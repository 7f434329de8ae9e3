// Writes a whole step from one process, shard by shard, with memory for a few blocks: from other
// sources than the arena of a running job, or as a copy of another step.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/reader.h"
#include "ckpt/shard_writer.h"

namespace halflife::ckpt {

// `manifest` has the state, the arrays, and tensors without fragments. Files, fragments, attempt
// and mesh are filled in. `plan(rank)` returns the contents of the shard of slice `rank` of
// `layout`. `out` is the new step folder, which is published by one rename. Throws Error kUsage if
// it exists, kCheckpointIo, or kNonFinite for a NaN in main. After an error nothing is left.
void WriteStep(const std::filesystem::path& out, Manifest manifest,
               const dist::ParameterLayout& layout, const std::function<ShardPlan(int rank)>& plan);

// Writes a new step with main weights only, in one shard. read(tensor, begin, end, out) gives the
// values of a parameter, block by block. Throws the same errors as WriteStep.
void WriteMainWeights(const std::filesystem::path& out, StepState state,
                      const std::vector<dist::ParamSpec>& specs,
                      const std::function<void(const std::string& tensor, int64_t begin,
                                               int64_t end, float* out)>& read);

// Writes a copy of a step, split into shards for another world size, in one pass. Loading a step
// does not need this. It is for copies that other tools read, and for large numbers of new ranks,
// each of which should find its slice in one file. Throws the same errors as WriteStep.
void ReshardStep(const StepReader& step, int world_size, const std::filesystem::path& out);

// Writes a step whose main weights are the mean of those of `steps` (at least one), added in fp64,
// without optimizer state, for evaluation, export and --init-from. All else is of the last step.
// Throws the same errors as WriteStep, and kUsage if the steps have other tensors.
void AverageSteps(const std::vector<StepReader>& steps, const std::filesystem::path& out);

// Returns the hash of every element of every tensor and array, in registration order: it is equal
// for equal states, however they are split into shards.
Hash128 GatheredHash(const StepReader& step);

}  // namespace halflife::ckpt
