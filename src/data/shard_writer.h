// Writes the documents of one split, with or without labels, into numbered HDF5 shards of at most
// `shard_tokens` tokens each. A document may cross from one shard into the next. One thread uses a
// writer.
//
//   ShardWriter writer({.folder = tmp, .split = Split::kTrain, .token_bytes = 2});
//   writer.BeginDocument();
//   writer.Append(ids);                        // any number of times; the last id is eos
//   SplitRecord record = writer.Finish();      // everything is on disk, hashed and synced
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "data/manifest.h"
#include "data/source_list.h"

namespace halflife::data {

struct ShardWriterConfig {
  std::filesystem::path folder;
  Split split = Split::kTrain;
  int token_bytes = 2;
  int64_t shard_tokens = int64_t{1} << 26;  // 128 MiB of 16-bit tokens
  bool labels = false;                      // beside each token
};

class ShardWriter {
 public:
  explicit ShardWriter(const ShardWriterConfig& config);
  ~ShardWriter();

  // The documents from here on come from the file of this name. Not with config.labels.
  void BeginSource(std::string_view name) { sources_.Begin(name); }
  void BeginDocument();
  void Append(std::span<const int32_t> ids);
  // In place of the two above, with config.labels: a document whole, a row or part of one; as many
  // labels as ids.
  void AppendLabelled(std::span<const int32_t> ids, std::span<const int32_t> labels);
  // Text bytes of what was appended, for the manifest.
  void CountBytes(int64_t bytes) { record_.info.num_bytes += bytes; }
  SplitRecord Finish();

 private:
  class File;
  void AppendPieces(std::span<const int32_t> ids, std::span<const int32_t> labels);
  void OpenShardIfNone();
  void CloseShard();

  const ShardWriterConfig config_;
  SplitRecord record_;
  SourceList sources_;
  std::unique_ptr<File> file_;  // null between shards
};

}  // namespace halflife::data
