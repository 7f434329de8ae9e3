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
#include <vector>

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

}  // namespace halflife::data
