#include "data/bpe/merger.h"

#include <algorithm>
#include <array>
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

namespace {

constexpr uint32_t kFirstStandIn = 0x100;

constexpr bool ShowsItself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<uint16_t, 256> MakeCodePoints() {
  std::array<uint16_t, 256> code_points{};
  uint32_t stand_in = kFirstStandIn;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    code_points[byte] = static_cast<uint16_t>(ShowsItself(byte) ? byte : stand_in++);
  }
  return code_points;
}

constexpr std::array<uint16_t, 256> kCodePoints = MakeCodePoints();

// Returns the byte of each code point below 0x144; -1 if there is none.
constexpr std::array<int16_t, 0x144> MakeBytes() {
  std::array<int16_t, 0x144> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    bytes[kCodePoints[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, 0x144> kBytes = MakeBytes();
static_assert(kCodePoints[' '] == 0x120 && kCodePoints[0xAD] == 0x143);

}  // namespace

std::string AlphabetCharacter(uint8_t byte) {
  const uint16_t code_point = kCodePoints[byte];
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::optional<std::string> BytesOfToken(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    uint32_t code_point = static_cast<uint8_t>(token[i]);
    if (code_point >= 0x80) {
      // Two UTF-8 bytes cover all code points of the alphabet, which ends at U+0143.
      if (code_point < 0xC2 || code_point > 0xDF || ++i == token.size()) return std::nullopt;
      code_point = (code_point & 0x1F) << 6 | (static_cast<uint8_t>(token[i]) & 0x3F);
    }
    if (code_point >= kBytes.size() || kBytes[code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[code_point]);
  }
  return bytes;
}

}  // namespace halflife::data
