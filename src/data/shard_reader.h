// Reads verified blocks of one shard. HDF5 opens the file on the first read. All content is
// verified: the hash of the header is checked before HDF5 parses it, and the hash of a block
// whenever the block is read.
//
//   ShardReader shard(folder, record, vocab_size, num_labels);
//   shard.CheckHeader();
//   const std::vector<int32_t> block = shard.ReadTokens(3);   // tokens [3, 4) * kBlockTokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/hash.h"
#include "data/hdf5_handles.h"
#include "data/shard_layout.h"

namespace halflife::data {

class ShardReader {
 public:
  // `num_labels` is the exclusive upper bound of the labels.
  ShardReader(const std::filesystem::path& folder, const ShardRecord& record, int vocab_size,
              int num_labels);

  const ShardRecord& record() const { return record_; }
  // Checks presence, size and header of the file. Throws Error kData.
  void CheckHeader() const;
  // Checks every byte of the file.
  void CheckWhole() const;
  std::vector<int32_t> ReadTokens(int64_t block);
  // The labels of ReadTokens(block); only for labelled rows.
  std::vector<int32_t> ReadLabels(int64_t block);
  std::vector<int64_t> ReadStarts(int64_t block);

  // The owner limits the number of open files by closing those that are not in use. Call both
  // functions under an Hdf5Lock.
  bool is_open() const { return static_cast<bool>(file_); }
  void Close();

 private:
  void Open();
  // Reads elements [begin, begin + count) of a dataset into `out`, which must have the stored type.
  void ReadRaw(const Hdf5Handle& dataset, int64_t type, int64_t begin, int64_t count, void* out);

  std::filesystem::path path_;
  ShardRecord record_;
  int token_bytes_;
  int vocab_size_;
  int num_labels_;
  Hdf5Handle file_, tokens_, labels_, starts_;  // the datasets are closed before the file
  Hdf5Handle unchecked_;  // reads without HDF5's own checksums, because the manifest's are stronger
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
// The hash of only the first `bytes` bytes.
Hash128 HashFilePrefix(int fd, const std::filesystem::path& path, uint64_t bytes);

}  // namespace halflife::data
