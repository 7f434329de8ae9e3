#include "infer/prefix_store.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace halflife::infer {
namespace {

uint64_t KeyOf(std::span<const int32_t> tokens) {
  return HashBytes(tokens.data(), tokens.size_bytes()).lo;
}

// Copies tensors that are views of a larger storage. For example, the keys and values of a first
// chunk are views of the joined projection, which also has the queries.
model::ModelState WithOwnStorage(model::ModelState state) {
  for (model::MixerState& layer : state.layers)
    for (at::Tensor& tensor : layer.tensors)
      if (tensor.defined() && tensor.storage().nbytes() > tensor.nbytes())
        tensor = tensor.clone(at::MemoryFormat::Contiguous);
  return state;
}

}  // namespace

bool PrefixStore::Wants(int64_t length, int64_t prompt_tokens) const {
  if (config_.max_bytes == 0 || length % config_.chunk != 0 || length >= prompt_tokens)
    return false;
  return prompt_tokens - length <= config_.chunk ||
         std::has_single_bit(static_cast<uint64_t>(length / config_.chunk));
}

PrefixStore::Entries::iterator PrefixStore::Lookup(uint64_t key, std::span<const int32_t> prefix) {
  const auto [first, last] = by_key_.equal_range(key);
  const auto found = std::find_if(first, last, [&](const auto& item) {
    return std::ranges::equal(item.second->tokens, prefix);
  });
  return found == last ? entries_.end() : found->second;
}

model::ModelState PrefixStore::Find(std::span<const int32_t> prompt) {
  tokens_sought_ += std::ssize(prompt);
  if (entries_.empty() || prompt.empty()) return {};
  // The hashes of all beginnings, in one pass over the prompt.
  const int64_t chunk = config_.chunk, num_chunks = (std::ssize(prompt) - 1) / chunk;
  std::vector<uint64_t> keys;
  StreamHash hash;
  for (int64_t i = 0; i < num_chunks; ++i) {
    hash.Update(prompt.data() + i * chunk, static_cast<size_t>(chunk) * sizeof(int32_t));
    keys.push_back(hash.Digest().lo);
  }
  for (int64_t i = num_chunks; i > 0; --i) {
    const auto found = Lookup(keys[i - 1], prompt.first(i * chunk));
    if (found == entries_.end()) continue;
    entries_.splice(entries_.begin(), entries_, found);
    tokens_found_ += i * chunk;
    return found->state;
  }
  return {};
}

void PrefixStore::Keep(std::span<const int32_t> prefix, const model::ModelState& state) {
  const int64_t bytes = state.bytes() + static_cast<int64_t>(prefix.size_bytes());
  if (bytes > config_.max_bytes) return;
  const uint64_t key = KeyOf(prefix);
  if (const auto found = Lookup(key, prefix); found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return;
  }
  entries_.push_front({.tokens = {prefix.begin(), prefix.end()},
                       .state = WithOwnStorage(state),
                       .bytes = bytes,
                       .key = key});
  by_key_.emplace(key, entries_.begin());
  bytes_ += bytes;
  while (bytes_ > config_.max_bytes) {
    const auto oldest = std::prev(entries_.end());
    const auto [first, last] = by_key_.equal_range(oldest->key);
    by_key_.erase(
        std::find_if(first, last, [&](const auto& item) { return item.second == oldest; }));
    bytes_ -= oldest->bytes;
    entries_.erase(oldest);
  }
}

}  // namespace halflife::infer
