// Constants, records and index files of token shards, which writer and reader share.
// docs/data_format.md describes the whole format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/hash.h"

namespace halflife::data {

constexpr uint32_t kTextVersion = 1;
// Programs that only know text reject this version; they would train on the next token instead of
// on labels.
constexpr uint32_t kRowsVersion = 2;
// Programs that only know rows of one document reject this version; they would let tokens attend to
// other examples.
constexpr uint32_t kExamplesVersion = 3;
// Any of the three contents, with the hashes of the blocks in index files. This is the version that
// the program usually writes.
constexpr uint32_t kIndexedVersion = 4;
// Text whose shards are links to token files of another trainer: they are not HDF5 and have no
// document starts, which only labelled rows need. Programs that only know HDF5 reject this version.
constexpr uint32_t kInPlaceVersion = 5;
// A block is one HDF5 chunk and has one hash: 64 KiB of 16-bit tokens, or 64 KiB of document
// starts. It is small enough that a random window of a few hundred tokens reads little more than it
// needs, and large enough that hashes take only 0.03 % of the size of the tokens.
constexpr int64_t kBlockTokens = 32768;
constexpr int64_t kBlockStarts = 8192;
// A shard's header reserves room for the index of this many tokens, however few the shard holds. At
// this limit that is 16 MiB, which every reader hashes.
constexpr int64_t kMaxShardTokens = int64_t{1} << 32;
// [num_tokens] uint16 or uint32, little endian.
constexpr char kTokensName[] = "tokens";
// [num_tokens] int32, only for labelled rows; kNoTarget marks a token without a label.
constexpr char kLabelsName[] = "labels";
// [num_documents] int64, token index in the shard.
constexpr char kStartsName[] = "document_starts";
constexpr char kManifestName[] = "manifest.pb";
constexpr char kManifestTextName[] = "manifest.txtpb";
constexpr char kTokenizerFolder[] = "tokenizer";
constexpr char kDamageRemedy[] = "restore the dataset from a copy, or run `halflife prepare` again";

constexpr int64_t NumBlocks(int64_t count, int64_t block) { return (count + block - 1) / block; }
constexpr int TokenBytes(int vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

struct FileRecord {
  std::string name;
  uint64_t bytes = 0;
  Hash128 hash;  // hash of the whole file
};

// A block of a column.
struct BlockRecord {
  uint64_t offset = 0;  // in the shard file; 0 in the manifests of formats 1 to 3, which omit it
  Hash128 hash;         // of the block's elements, as stored
};

// The contents of a shard's index file.
struct ShardIndex {
  uint64_t header_bytes = 0;  // size of HDF5's own structures before the first block
  Hash128 header_hash;
  std::vector<BlockRecord> tokens, labels, starts;  // labels: empty for text
  std::vector<int64_t> first_starts;                // first entry of each block of document starts

  size_t bytes() const {
    return sizeof(BlockRecord) * (tokens.size() + labels.size() + starts.size()) +
           sizeof(int64_t) * first_starts.size();
  }
};

struct ShardRecord {
  FileRecord file;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // that start in this shard; a document may continue in the next shard
  Hash128 index_hash;         // of the index file
  std::shared_ptr<const ShardIndex> index = nullptr;  // of formats 1 to 3, which have no index file
};

// The index of a shard: where its blocks are and what their hashes are. In format 4 it is a file
// next to the shard, train-00000.index for train-00000.h5, and the manifest has its hash. In
// formats 1 to 3 the manifest contains the hashes, and the offsets come from HDF5.
//
// The file, in little endian: the magic, header_bytes, header_hash, the blocks of tokens, of labels
// (if the dataset has labels) and of document starts, and first_starts. A hash is its high and its
// low word. The numbers of blocks follow from the shard's numbers of tokens and documents.

// "train-00000.h5" -> "train-00000.index"
std::string IndexName(const std::string& shard_name);

std::string EncodeIndex(const ShardIndex& index);

// Reads the index file of a shard of format 4 in `folder`, or returns the index of the manifest.
// Throws Error kData, with the file's name, if the file is missing or has not the manifest's hash.
std::shared_ptr<const ShardIndex> ReadIndex(const std::filesystem::path& folder,
                                            const ShardRecord& record, bool has_labels);

}  // namespace halflife::data
