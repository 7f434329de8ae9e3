// The numbers of a token shard that writer and reader share. docs/data_format.md tells the whole of
// it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/hash.h"

namespace halflife::data {

constexpr uint32_t kTextVersion = 1;
// Programs that know text alone refuse it: they would train on the next token in place of labels.
constexpr uint32_t kRowsVersion = 2;
// And those that know rows of one document each would let tokens look into other examples.
constexpr uint32_t kExamplesVersion = 3;
// One HDF5 chunk and one hash each: 64 KiB of 16-bit tokens, 64 KiB of document starts. Small
// enough that a random window of some hundred tokens reads little more than it needs, large enough
// that hashes take 0.03 % of the tokens.
constexpr int64_t kBlockTokens = 32768;
constexpr int64_t kBlockStarts = 8192;
// A shard's header has room for the index of as many blocks, however few there are: 16 MiB then,
// which every reader hashes.
constexpr int64_t kMostShardTokens = int64_t{1} << 32;
// [num_tokens] uint16 or uint32, little endian.
constexpr char kTokensName[] = "tokens";
// [num_tokens] int32, of labelled rows: kNoTarget where nothing is asked.
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
  Hash128 hash;  // of the whole file
};

struct ShardRecord {
  FileRecord file;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // that start in this shard; a document may go on in the next one
  uint64_t header_bytes = 0;  // what lies before the first block: HDF5's own structures
  Hash128 header_hash;
  std::vector<Hash128> token_hashes;  // of the tokens of each block, as stored
  std::vector<Hash128> label_hashes;  // of their labels; none: text
  std::vector<Hash128> start_hashes;
  std::vector<int64_t> first_starts;  // first entry of each block of document starts
};

}  // namespace halflife::data
