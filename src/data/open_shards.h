// The open shards of a dataset, up to a number of descriptors and a size of their indexes. Beyond
// either, the least recently used shard is closed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "data/shard_reader.h"

namespace halflife::data {

struct OpenShardLimits {
  size_t most_open = 0;
  size_t most_index_bytes = 0;
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
