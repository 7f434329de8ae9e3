#include "eval/retrieval.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/error.h"
#include "data/random_words.h"

namespace halflife::eval {
namespace {

using Tokens = std::vector<int32_t>;

// The purpose of a random draw, used as the `layer` of its key. The values differ from those of the
// rows of `prepare --synthetic mqar`.
enum class Stream : uint32_t { kPlace = 16, kDigits = 17, kKeys = 18, kValues = 19, kOrder = 20 };

data::RandomWords Words(uint64_t seed, Stream stream, uint64_t sample) {
  return {MakeRandomKey(seed, RandomPurpose::kSynthetic, static_cast<uint32_t>(stream)), sample};
}

// Returns `count` of the candidates in random order: the first steps of a Fisher-Yates shuffle.
Tokens Drawn(Tokens candidates, int64_t count, data::RandomWords words) {
  const std::ptrdiff_t size = std::ssize(candidates);
  for (std::ptrdiff_t i = 0; i < count; ++i)
    std::swap(candidates[static_cast<size_t>(i)],
              candidates[static_cast<size_t>(i + words.Below(static_cast<uint32_t>(i), size - i))]);
  candidates.resize(static_cast<size_t>(count));
  return candidates;
}

void Append(const Tokens& from, Tokens& to) { to.insert(to.end(), from.begin(), from.end()); }

std::string Digits(uint64_t seed, uint64_t sample) {
  constexpr uint32_t kDigits = 5;
  data::RandomWords words = Words(seed, Stream::kDigits, sample);
  std::string digits;
  for (uint32_t i = 0; i < kDigits; ++i) digits += static_cast<char>('0' + words.Below(i, 10));
  return digits;
}

}  // namespace

Needle PasskeyNeedle(const data::Tokenizer& tokenizer, uint64_t seed, uint64_t sample) {
  const std::string digits = Digits(seed, sample);
  const Tokens key = tokenizer.Encode(digits);
  const int32_t unk = tokenizer.special_ids().unk;
  HL_CHECK_AS(ExitCode::kUsage, !key.empty() && (unk < 0 || !std::ranges::count(key, unk)),
              "--retrieval passkey: the tokenizer has no tokens for ", digits,
              ". Use --retrieval mqar, which needs no words.");
  Needle needle = {.told = tokenizer.Encode(" The pass key is "),
                   .asked = tokenizer.Encode(" What is the pass key? The pass key is "),
                   .targets = {}};
  Append(key, needle.told);
  Append(tokenizer.Encode(". Remember it."), needle.told);
  needle.targets.resize(needle.asked.size() - 1, data::kNoTarget);
  Append(key, needle.targets);
  needle.asked.insert(needle.asked.end(), key.begin(), key.end() - 1);
  return needle;
}

Needle MqarNeedle(const MqarNeedles& config, std::span<const int32_t> haystack, uint64_t seed,
                  uint64_t sample) {
  Tokens there(haystack.begin(), haystack.end()), left;
  std::ranges::sort(there);
  std::ranges::set_difference(config.ordinary, there, std::back_inserter(left));
  const auto half = std::ranges::lower_bound(left, config.vocab_size / 2);
  const Tokens keys(left.begin(), half), values(half, left.end());
  const int64_t most = std::min(std::ssize(keys), std::ssize(values));
  HL_CHECK_AS(ExitCode::kUsage, config.num_pairs <= most, "--pairs ", config.num_pairs,
              ": a haystack of ", haystack.size(), " tokens leaves ", keys.size(),
              " unused tokens of the vocabulary's lower half for keys and ", values.size(),
              " of its upper half for values. Use ",
              most > 0 ? Concat("at most ", most) : "shorter --lengths", ".");
  const Tokens key = Drawn(keys, config.num_pairs, Words(seed, Stream::kKeys, sample)),
               value = Drawn(values, config.num_pairs, Words(seed, Stream::kValues, sample));
  Tokens pairs(key.size());
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<int32_t>(i);
  Needle needle;
  for (size_t i = 0; i < key.size(); ++i) Append({key[i], value[i]}, needle.told);
  for (const int32_t pair : Drawn(pairs, config.num_pairs, Words(seed, Stream::kOrder, sample))) {
    needle.asked.push_back(key[static_cast<size_t>(pair)]);
    needle.targets.push_back(value[static_cast<size_t>(pair)]);
  }
  return needle;
}

Prompt Hide(const Needle& needle, std::span<const int32_t> haystack, int64_t length, double depth) {
  const int64_t text = length - needle.size();
  HL_CHECK_AS(ExitCode::kUsage, text >= 0, "--lengths: rows of ", length,
              " tokens are too short for the needle and its question, which need ", needle.size(),
              " tokens. Use ", needle.size(), " or more.");
  HL_CHECK(depth >= 0 && depth <= 1 && std::ssize(haystack) >= text, "depth is ", depth,
           ", and the haystack has ", haystack.size(), " of the required ", text, " tokens");
  const auto before = static_cast<int64_t>(std::floor(static_cast<double>(text) * depth));
  Prompt prompt = {.inputs = {haystack.begin(), haystack.begin() + before},
                   .targets = Tokens(static_cast<size_t>(length), data::kNoTarget)};
  Append(needle.told, prompt.inputs);
  prompt.inputs.insert(prompt.inputs.end(), haystack.begin() + before, haystack.begin() + text);
  Append(needle.asked, prompt.inputs);
  std::ranges::copy(needle.targets, prompt.targets.end() - std::ssize(needle.targets));
  return prompt;
}

Haystack::Haystack(const data::TokenView& tokens, uint64_t seed) : tokens_(tokens), seed_(seed) {
  HL_CHECK_AS(ExitCode::kUsage, tokens.row_len == 0, "--retrieval hides needles in text, but ",
              tokens.name, " has labelled rows. Use a dataset of text, or --text FILE.");
  HL_CHECK_AS(ExitCode::kData, tokens.info.num_tokens > tokens.info.num_documents, tokens.name,
              " contains no text in which a needle can be hidden");
}

Tokens Haystack::Text(uint64_t sample, int64_t count) const {
  const int64_t size = tokens_.info.num_tokens;
  data::RandomWords words = Words(seed_, Stream::kPlace, sample);
  int64_t place = words.Below(0, size);
  Tokens text;
  while (std::ssize(text) < count) {
    Tokens piece(static_cast<size_t>(std::min(size - place, count)));
    tokens_.read(place, piece);
    place = (place + std::ssize(piece)) % size;
    std::erase(piece, tokens_.eos_id);
    Append(piece, text);
  }
  text.resize(static_cast<size_t>(count));
  return text;
}

}  // namespace halflife::eval
