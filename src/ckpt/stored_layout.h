// Where the shard files of a step hold which elements, derived from the buckets of the run that
// saved it. A manifest of schema 3 lists buckets instead of fragments: their number does not depend
// on the number of files.
//
// The file of slice i holds, array by array, the i-th of num_slices equal parts of every bucket, as
// ranges of tensors, without padding. Tensors without elements follow in the file of slice 0. The
// last entry of a file is the table of its block hashes.
#pragma once

#include <string>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/shard_writer.h"

namespace halflife::ckpt {

// The name of the table of block hashes in a shard file: 16 bytes per block (high word, low word,
// little endian), in the order of the blocks.
constexpr char kHashesName[] = "__hashes__";
constexpr uint64_t kHashBytes = 16;

std::vector<StoredBucket> BucketsOf(const dist::ParameterLayout& layout);

// Returns the pieces of one slice in the order of their bytes, without data.
ShardPlan PlanStoredSlice(const Manifest& manifest, int slice);

// Fills in the fragments of the tensors and the number of blocks of the files, for a manifest with
// buckets. `where` begins all messages. Throws DamageError if a tensor is not in exactly one
// bucket, does not fit in it, or if the files are not those of all slices.
void DeriveFragments(Manifest* manifest, const std::string& where);

// Throws DamageError unless the header of every file is that of its slice: a file of another slice,
// step or layout has another header.
void CheckDerivedHeaders(const Manifest& manifest, const std::string& where);

}  // namespace halflife::ckpt
