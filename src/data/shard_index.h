// The index of a shard: where its blocks are and what their hashes are. In format 4 it is a file
// next to the shard, train-00000.index for train-00000.h5, and the manifest has its hash. In
// formats 1 to 3 the manifest contains the hashes, and the offsets come from HDF5.
//
// The file, in little endian: the magic, header_bytes, header_hash, the blocks of tokens, of labels
// (if the dataset has labels) and of document starts, and first_starts. A hash is its high and its
// low word. The numbers of blocks follow from the shard's numbers of tokens and documents.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/shard_layout.h"

namespace halflife::data {

// "train-00000.h5" -> "train-00000.index"
std::string IndexName(const std::string& shard_name);

std::string EncodeIndex(const ShardIndex& index);

// Reads the index file of a shard of format 4 in `folder`, or returns the index of the manifest.
// Throws Error kData, with the file's name, if the file is missing or has not the manifest's hash.
std::shared_ptr<const ShardIndex> ReadIndex(const std::filesystem::path& folder,
                                            const ShardRecord& record, bool has_labels);

}  // namespace halflife::data
