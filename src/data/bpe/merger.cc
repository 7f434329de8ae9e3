#include "data/bpe/merger.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/philox.h"

namespace halflife::data {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

constexpr size_t kKeptWordBytes = 1 << 16;  // memory for longer words is released after use

// Heap order: the lowest rank is at the top, and the leftmost among equal ranks.
constexpr auto kLater = [](const auto& a, const auto& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
};

}  // namespace

Merger::Merger(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges)
    : byte_ids_(byte_ids), slots_(std::bit_ceil(2 * merges.size() + 1)) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = PairKey(merges[rank].left, merges[rank].right);
    size_t i = SplitMix64(pair) & (slots_.size() - 1);
    while (slots_[i].pair != kEmpty) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {pair, static_cast<uint32_t>(rank), merges[rank].result};
  }
}

const Merger::Slot* Merger::Find(int32_t left, int32_t right) const {
  const uint64_t pair = PairKey(left, right);
  for (size_t i = SplitMix64(pair) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].pair == pair) return &slots_[i];
    if (slots_[i].pair == kEmpty) return nullptr;
  }
}

// Pushes the pair that begins at symbol `at`, if it can be merged.
void Merger::Push(int32_t at, Scratch& scratch) const {
  if (at < 0) return;
  const Scratch::Symbol& left = scratch.symbols[static_cast<size_t>(at)];
  if (left.after < 0) return;
  const Slot* merge = Find(left.id, scratch.symbols[static_cast<size_t>(left.after)].id);
  if (merge == nullptr) return;
  scratch.heap.push_back({merge->rank, at, merge->result});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), kLater);
}

void Merger::Append(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  HL_CHECK(word.size() < INT32_MAX, "a word of ", word.size(), " bytes");
  const auto size = static_cast<int32_t>(word.size());
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  symbols.resize(word.size());
  scratch.heap.clear();
  for (int32_t i = 0; i < size; ++i) {
    const auto at = static_cast<size_t>(i);
    symbols[at] = {byte_ids_[static_cast<uint8_t>(word[at])], i - 1, i + 1 < size ? i + 1 : -1};
  }
  for (int32_t i = 0; i < size; ++i) Push(i, scratch);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), kLater);
    const Scratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(best.at)];
    if (left.id < 0 || left.after < 0) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.after)];
    // One of the two symbols may have been merged since the pair was pushed.
    const Slot* merge = Find(left.id, right.id);
    if (merge == nullptr || merge->rank != best.rank) continue;
    left.id = best.result;
    right.id = -1;
    left.after = right.after;
    if (right.after >= 0) symbols[static_cast<size_t>(right.after)].before = best.at;
    Push(left.before, scratch);
    Push(best.at, scratch);
  }
  for (int32_t i = size > 0 ? 0 : -1; i >= 0; i = symbols[static_cast<size_t>(i)].after) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
  if (word.size() > kKeptWordBytes) scratch = {};
}

}  // namespace halflife::data
