// A least-recently-used cache for verified blocks of a dataset's columns. A block holds hundreds of
// short rows, and in a shuffled order consecutive rows are in different blocks.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace halflife::data {

struct ShardRecord;

template <typename T>
class BlockCache {
 public:
  using Block = std::shared_ptr<const std::vector<T>>;
  using Key = std::pair<const ShardRecord*, int64_t>;  // a shard and the index of a block in it

  // Holds at most `max_bytes` bytes, but always the block that was used last.
  explicit BlockCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Returns a block, calling read() if it is not cached. Errors of read() are not cached.
  // Thread-safe: read() runs without the lock, so two threads that miss the same block both read
  // it.
  template <typename Read>
  Block Get(const Key& key, const Read& read) {
    if (Block held = Find(key)) return held;
    Block block = std::make_shared<const std::vector<T>>(read());
    Insert(key, block);
    return block;
  }

 private:
  using Entry = std::pair<Key, Block>;

  Block Find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->second;
  }

  void Insert(const Key& key, const Block& block) {
    const std::lock_guard lock(mutex_);
    if (places_.contains(key)) return;  // another thread has inserted it
    entries_.emplace_front(key, block);
    places_.emplace(key, entries_.begin());
    bytes_ += BytesOf(block);
    while (bytes_ > max_bytes_ && entries_.size() > 1) {
      bytes_ -= BytesOf(entries_.back().second);
      places_.erase(entries_.back().first);
      entries_.pop_back();
    }
  }

  static size_t BytesOf(const Block& block) { return block->size() * sizeof(T); }

  const size_t max_bytes_;
  std::mutex mutex_;          // guards the members below
  std::list<Entry> entries_;  // most recently used first
  std::map<Key, typename std::list<Entry>::iterator> places_;
  size_t bytes_ = 0;
};

}  // namespace halflife::data
