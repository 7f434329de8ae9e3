// The core of byte-pair encoding (Sennrich et al., ACL 2016), and its alphabet for bytes. Starting
// from the bytes of a word, it repeatedly merges the pair of lowest rank, and the leftmost among
// equal ranks.
//
//   const Merger merger(byte_ids, merges);
//   Merger::Scratch scratch;  // one per thread
//   merger.Append(" the", scratch, ids);
//
// O(n log n) in the length of the word: a heap of candidate pairs over a linked list.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe/tokenizer_json.h"

namespace halflife::data {

class Merger {
 public:
  Merger(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges);

  class Scratch {
    friend class Merger;
    struct Symbol {
      int32_t id = 0;  // -1: merged into the symbol before
      int32_t before = -1, after = -1;
    };
    struct Candidate {
      uint32_t rank = 0;
      int32_t at = 0;  // the left symbol
      int32_t result = 0;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of one word, which must be shorter than 2 GiB.
  void Append(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  const Slot* Find(int32_t left, int32_t right) const;  // null if there is no such merge
  void Push(int32_t at, Scratch& scratch) const;

  const std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing, at most half full; the size is a power of two
};

// Returns the printable character, as UTF-8, that byte-level BPE uses for a byte (bytes_to_unicode
// in GPT-2's encoder.py). Visible Latin-1 characters represent themselves. The other 68 bytes are
// assigned U+0100 and up, in order.
std::string AlphabetCharacter(uint8_t byte);

// Returns the bytes that `token` represents, or nullopt if a character is not in the alphabet.
std::optional<std::string> BytesOfToken(std::string_view token);

}  // namespace halflife::data
