// Needles in a haystack: something told once at some depth of a text, and asked for at its end.
// Whether a model answers shows how far back it can look, and how well. Prompts are a function of
// (seed, sample): of a sample every length and depth hides the same needle in the same text.
//
//   const Haystack haystack(tokens, /*seed=*/0);
//   const std::vector<int32_t> text = haystack.Text(sample, 1024);
//   const Needle needle = PasskeyNeedle(tokenizer, /*seed=*/0, sample);
//   const Prompt prompt = Hide(needle, text, /*length=*/1024, /*depth=*/0.5);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_source.h"
#include "data/tokenizer.h"

namespace halflife::eval {

struct Needle {
  std::vector<int32_t> told;   // stands within the text
  std::vector<int32_t> asked;  // stands at its end
  // [asked.size()] the next token where it is part of an answer, else data::kNoTarget.
  std::vector<int32_t> targets;
  int64_t size() const { return static_cast<int64_t>(told.size() + asked.size()); }
};

// " The pass key is 71432. Remember it." and " What is the pass key? The pass key is 7143", whose
// last five digits are asked for one after the other (Mohtashami and Jaggi, 2023, in fewer words).
// The key has the same tokens in both places: each piece is read by itself. Error kUsage where the
// tokenizer has no token for a digit.
Needle PasskeyNeedle(const data::Tokenizer& tokenizer, uint64_t seed, uint64_t sample);

struct MqarNeedles {
  int64_t vocab_size = 0;         // V
  std::vector<int32_t> ordinary;  // tokens that stand for text, in ascending order
  int64_t num_pairs = 4;          // K
};
// Pairs k v k v ..., and all keys once more in another order, each of which asks for its value: the
// haystack's form of MQAR (Arora et al., 2023). Keys are of [0, V/2), values of [V/2, V), as in
// rows of `prepare --synthetic mqar`, and neither stands in the haystack. Error kUsage where that
// leaves too few.
Needle MqarNeedle(const MqarNeedles& config, std::span<const int32_t> haystack, uint64_t seed,
                  uint64_t sample);

// A row that a model reads, [length] each, one document.
struct Prompt {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;  // data::kNoTarget where nothing is asked
};
// `haystack` up to what the needle leaves of `length`, floor(depth of it) before the needle. Error
// kUsage where the length has no room for the needle.
Prompt Hide(const Needle& needle, std::span<const int32_t> haystack, int64_t length, double depth);

// Text without its ends of documents, as if it were one and went on for ever.
class Haystack {
 public:
  // `tokens` is borrowed. Error kUsage for labelled rows, kData where there is nothing to read.
  Haystack(const data::TokenView& tokens, uint64_t seed);
  // `count` tokens from a place of the sample's own.
  std::vector<int32_t> Text(uint64_t sample, int64_t count) const;

 private:
  const data::TokenView& tokens_;
  uint64_t seed_;
};

}  // namespace halflife::eval
