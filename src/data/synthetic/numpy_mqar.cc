#include "data/synthetic/numpy_mqar.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/error.h"

namespace halflife::data {
namespace {

// Calls visit(i, j) for the swaps of a shuffle of `size` elements, for decreasing i. The j for an i
// is the first word, masked to the bits of i, that is not above i. About three of ten words are
// above i. Such a word swaps i with itself, because a branch on it would be unpredictable.
template <typename Visit>
void VisitSwaps(std::mt19937& words, uint32_t size, const Visit& visit) {
  uint32_t i = size - 1;
  for (uint32_t mask = std::bit_ceil(size) - 1; mask > 0; mask >>= 1) {
    while (i > mask >> 1) {
      const uint32_t word = static_cast<uint32_t>(words()) & mask;
      const bool fits = word <= i;
      visit(i, fits ? word : i);
      i -= fits;
    }
  }
}

// Returns a uniform number in [0, 1) from 53 bits of two words.
double DrawUniform(std::mt19937& words) {
  const auto high = static_cast<uint32_t>(words()) >> 5;
  const auto low = static_cast<uint32_t>(words()) >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

std::vector<int32_t> Numbers(int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

void SkipPermutations(std::mt19937& words, size_t size, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    VisitSwaps(words, static_cast<uint32_t>(size), [](uint32_t, uint32_t) {});
  }
}

}  // namespace

NumpyMqarDraws::NumpyMqarDraws(const MqarConfig& config, int64_t num_examples)
    : config_((CheckMqar(config), config)),
      weights_(MqarSlotWeights(config)),
      key_numbers_(Numbers(config.vocab_size / 2 - 1)),
      value_numbers_(Numbers(config.vocab_size - config.vocab_size / 2)) {
  HL_CHECK_AS(ExitCode::kUsage, config.seed <= UINT32_MAX, "seed ", config.seed,
              " of the numpy_compat generator, whose seeds have 32 bits. Use 0 to ", UINT32_MAX,
              ", or the native generator.");
  key_words_.seed(static_cast<uint32_t>(config.seed));
  value_words_ = key_words_;
  SkipPermutations(value_words_, key_numbers_.size(), num_examples);
  slot_words_ = value_words_;
  SkipPermutations(slot_words_, value_numbers_.size(), num_examples);
}

void NumpyMqarDraws::AppendPermuted(std::mt19937& words, const std::vector<int32_t>& identity,
                                    int32_t base, std::vector<int32_t>& out) {
  permuted_ = identity;
  VisitSwaps(words, static_cast<uint32_t>(identity.size()),
             [this](uint32_t i, uint32_t j) { std::swap(permuted_[i], permuted_[j]); });
  for (int64_t j = 0; j < config_.num_pairs; ++j)
    out.push_back(base + permuted_[static_cast<size_t>(j)]);
}

// Draws in rounds, each with as many draws as slots are missing. Repeated slots are drawn again in
// the next round, in which all slots found so far have weight zero.
void NumpyMqarDraws::AppendSlots(std::vector<int32_t>& out) {
  const auto first = static_cast<int64_t>(out.size());
  const auto num_found = [&] { return static_cast<int64_t>(out.size()) - first; };
  left_ = weights_;
  cumulative_.resize(weights_.size());
  while (num_found() < config_.num_pairs) {
    const int64_t missing = config_.num_pairs - num_found();
    std::partial_sum(left_.begin(), left_.end(), cumulative_.begin());
    const double total = cumulative_.back();
    for (double& sum : cumulative_) sum /= total;
    for (int64_t i = 0; i < missing; ++i) {
      const auto above =
          std::upper_bound(cumulative_.begin(), cumulative_.end(), DrawUniform(slot_words_));
      const auto slot = static_cast<int32_t>(above - cumulative_.begin());
      if (left_[static_cast<size_t>(slot)] == 0) continue;  // already drawn in this round
      left_[static_cast<size_t>(slot)] = 0;
      out.push_back(slot);
    }
  }
}

MqarDraws NumpyMqarDraws::Next(int64_t count) {
  MqarDraws draws;
  for (int64_t i = 0; i < count; ++i) {
    AppendPermuted(key_words_, key_numbers_, 1, draws.keys);
    AppendPermuted(value_words_, value_numbers_, config_.vocab_size / 2, draws.values);
    AppendSlots(draws.slots);
  }
  return draws;
}

}  // namespace halflife::data
