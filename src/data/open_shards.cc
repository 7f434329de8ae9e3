#include "data/open_shards.h"

#include <sys/resource.h>

#include <algorithm>

namespace halflife::data {

OpenShardLimits RaisedLimits(size_t num_datasets) {
  constexpr rlim_t kFewest = 64, kMost = 1 << 20;
  constexpr size_t kIndexBytes = size_t{1} << 30;
  const auto part = [&](rlim_t descriptors) {
    return OpenShardLimits{.most_open = std::max<size_t>(descriptors / num_datasets, 1),
                           .most_index_bytes = kIndexBytes / num_datasets};
  };
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return part(kFewest);
  const rlim_t wanted = std::min(limit.rlim_max, kMost);
  if (limit.rlim_cur < wanted) {
    struct rlimit raised = limit;
    raised.rlim_cur = wanted;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return part(std::clamp(limit.rlim_cur / 4 * 3, kFewest, kMost));
}

std::shared_ptr<const ShardReader> OpenShards::Open(const ShardRecord& record) const {
  return std::make_shared<const ShardReader>(folder_, record, vocab_size_, num_labels_);
}

std::shared_ptr<const ShardReader> OpenShards::Get(const ShardRecord& record) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(&record);
    if (found != places_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->second;
    }
  }
  std::shared_ptr<const ShardReader> shard = Open(record);
  const std::lock_guard lock(mutex_);
  ++num_opened_;
  // Another thread may have opened it meanwhile.
  if (const auto found = places_.find(&record); found != places_.end())
    return found->second->second;
  entries_.emplace_front(&record, shard);
  places_.emplace(&record, entries_.begin());
  index_bytes_ += shard->index().bytes();
  while (entries_.size() > 1 &&
         (entries_.size() > limits_.most_open || index_bytes_ > limits_.most_index_bytes)) {
    index_bytes_ -= entries_.back().second->index().bytes();
    places_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return shard;
}

}  // namespace halflife::data
