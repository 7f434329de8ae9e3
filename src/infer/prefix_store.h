// Keeps the states of prompts' beginnings, so that a later prompt with the same beginning does not
// compute it again. The least recently used states are dropped when the store is full.
//
//   PrefixStore store({.max_bytes = int64_t{1} << 30, .chunk = 256});
//   model::ModelState state = store.Find(prompt);  // After the longest kept beginning.
//   // Read the rest of the prompt, then keep a part of it:
//   if (store.Wants(1024, std::ssize(prompt))) store.Keep(prompt.first(1024), state);
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/hash.h"
#include "infer/batch_config.h"
#include "model/language_model.h"

namespace halflife::infer {

class PrefixStore {
 public:
  explicit PrefixStore(const PrefixConfig& config) : config_(config) {}

  // Returns the state after the longest kept beginning that is shorter than the prompt. Its tensors
  // are shared with the store and must not be changed. num_tokens is 0 if there is none.
  model::ModelState Find(std::span<const int32_t> prompt);
  // Keeps the state after `prefix`, unless it is larger than the store. Call it if Wants(). Views
  // are copied, so that bytes() is the memory that the store occupies.
  void Keep(std::span<const int32_t> prefix, const model::ModelState& state);
  // Returns true if the state after `length` tokens of a prompt should be kept: after the last
  // whole chunk, and after 1, 2, 4, 8, ... chunks. A prompt then has few states, and prompts that
  // share half of their text find at least a quarter of it.
  bool Wants(int64_t length, int64_t prompt_tokens) const;

  int64_t bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  // Numbers of prompt tokens: those that Find has returned states for, and those of all prompts
  // passed to Find.
  int64_t tokens_found() const { return tokens_found_; }
  int64_t tokens_sought() const { return tokens_sought_; }

 private:
  struct Entry {
    std::vector<int32_t> tokens;
    model::ModelState state;
    int64_t bytes = 0;
    uint64_t key = 0;
  };
  using Entries = std::list<Entry>;  // The most recently used first.
  Entries::iterator Lookup(uint64_t key, std::span<const int32_t> prefix);

  PrefixConfig config_;
  Entries entries_;
  std::unordered_multimap<uint64_t, Entries::iterator> by_key_;
  int64_t bytes_ = 0, tokens_found_ = 0, tokens_sought_ = 0;
};

}  // namespace halflife::infer
