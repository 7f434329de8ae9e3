// Reads verified blocks of one shard with pread, at the offsets of its index. The hash of a block
// is checked whenever the block is read. For formats 1 to 3, HDF5 finds the offsets when the shard
// is opened, after the hash of the header was checked.
//
//   const ShardReader shard(folder, record, vocab_size, num_labels);
//   const std::vector<int32_t> block = shard.ReadTokens(3);   // tokens [3, 4) * kBlockTokens
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/files.h"
#include "core/hash.h"
#include "data/shard_layout.h"

namespace halflife::data {

// Thread-safe.
class ShardReader {
 public:
  // Opens the shard and reads its index. `num_labels` is the exclusive upper bound of the labels; 0
  // for text. Throws Error kData if a file is missing or has another size or hash than in `record`.
  ShardReader(const std::filesystem::path& folder, const ShardRecord& record, int vocab_size,
              int num_labels);

  const ShardIndex& index() const { return *index_; }
  void CheckHeader() const;
  // Checks every byte of the file.
  void CheckWhole() const;
  std::vector<int32_t> ReadTokens(int64_t block) const;
  // Returns the labels of ReadTokens(block); only for labelled rows.
  std::vector<int32_t> ReadLabels(int64_t block) const;
  std::vector<int64_t> ReadStarts(int64_t block) const;

 private:
  // Reads `bytes` bytes of a block into `out` and checks their hash. Errors name elements [begin,
  // begin + count) of `what`.
  void ReadBlock(const BlockRecord& block, const char* what, int64_t begin, int64_t count,
                 size_t bytes, void* out) const;
  void FindOffsets();

  std::filesystem::path path_;
  int64_t num_tokens_, num_documents_;
  FileRecord file_;
  int token_bytes_;
  int vocab_size_;
  int num_labels_;
  Fd fd_;
  std::shared_ptr<const ShardIndex> index_;
};

// A description of a single shard file for `halflife inspect`. To read tokens, use Dataset, which
// verifies them.
struct ShardFile {
  uint64_t bytes = 0;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // that start in the shard
  int token_bytes = 0;        // 2 or 4
  bool has_labels = false;    // one label per token, for labelled rows
  // Set only if the folder has a manifest that lists this file.
  std::string split;         // "train" or "validation"; empty without a manifest
  std::string dataset_hash;  // hex
};
// Reads only the header. If the folder has a manifest, size and header are verified before HDF5
// opens the file. Throws Error kData on failure.
ShardFile ReadShardFile(const std::filesystem::path& path);

// Hashes files that are too large for memory, in one pass and 1 MiB at a time.
struct FileHashes {
  Hash128 header;  // hash of the first header_bytes bytes
  Hash128 whole;
};
// Reads `fd` from its beginning with pread, so the file offset does not change. Errors are kData
// and name the path.
FileHashes HashFile(int fd, const std::filesystem::path& path, uint64_t header_bytes);
// Returns the hash of the first `bytes` bytes.
Hash128 HashFilePrefix(int fd, const std::filesystem::path& path, uint64_t bytes);

// The open shards of a dataset, up to a number of descriptors and a size of their indexes. Beyond
// either, the least recently used shard is closed.
struct OpenShardLimits {
  size_t max_open = 0;
  size_t max_index_bytes = 0;
};
// Raises the process's limit of descriptors to its hard limit. Three quarters of it may be shards.
// A gigabyte of indexes is that of more than a trillion tokens. Returns the part of one of
// `num_datasets` datasets that the process has open at the same time.
OpenShardLimits RaisedLimits(size_t num_datasets = 1);

// Thread-safe. Opening a shard does not block the readers of others.
class OpenShards {
 public:
  // `num_labels` as for ShardReader.
  OpenShards(std::filesystem::path folder, int vocab_size, int num_labels,
             const OpenShardLimits& limits)
      : folder_(std::move(folder)),
        vocab_size_(vocab_size),
        num_labels_(num_labels),
        limits_(limits) {}

  // Returns the reader of a shard, which stays open at least as long as the caller holds it. The
  // record's address identifies the shard. Throws the errors of ShardReader.
  std::shared_ptr<const ShardReader> Get(const ShardRecord& record);
  // Opens a shard without keeping it open.
  std::shared_ptr<const ShardReader> Open(const ShardRecord& record) const;

  size_t num_opened() const { return num_opened_; }  // so far, with repetitions

 private:
  using Entry = std::pair<const ShardRecord*, std::shared_ptr<const ShardReader>>;

  const std::filesystem::path folder_;
  const int vocab_size_, num_labels_;
  const OpenShardLimits limits_;
  std::mutex mutex_;          // guards the members below
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<const ShardRecord*, std::list<Entry>::iterator> places_;
  size_t index_bytes_ = 0, num_opened_ = 0;
};

}  // namespace halflife::data
