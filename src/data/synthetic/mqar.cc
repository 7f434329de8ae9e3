#include "data/synthetic/mqar.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "data/batch.h"
#include "data/random_words.h"

namespace halflife::data {
namespace {

// The purpose of a draw, used as the `layer` of its key.
enum class Stream : uint32_t { kKeys = 0, kValues = 1, kSlots = 2, kFill = 3 };

RandomWords Words(uint64_t seed, Stream stream, uint64_t example) {
  return {MakeRandomKey(seed, RandomPurpose::kSynthetic, static_cast<uint32_t>(stream)), example};
}

// Draws distinct members of [0, size) by the first steps of a Fisher-Yates shuffle. The swaps are
// undone after each row, so that the cost of a row depends on the number of draws and not on
// `size`.
class DistinctDraws {
 public:
  explicit DistinctDraws(int64_t size) : members_(static_cast<size_t>(size)) {
    std::iota(members_.begin(), members_.end(), 0);
  }

  // Appends `count` members, each increased by `base`.
  void Append(RandomWords words, int64_t count, int32_t base, std::vector<int32_t>& out) {
    const auto size = static_cast<int64_t>(members_.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t other = i + words.Below(static_cast<uint32_t>(i), size - i);
      std::swap(members_[static_cast<size_t>(i)], members_[static_cast<size_t>(other)]);
      out.push_back(base + members_[static_cast<size_t>(i)]);
      swapped_.push_back(other);
    }
    for (int64_t i = count - 1; i >= 0; --i) {
      std::swap(members_[static_cast<size_t>(i)],
                members_[static_cast<size_t>(swapped_[static_cast<size_t>(i)])]);
    }
    swapped_.clear();
  }

 private:
  std::vector<int32_t> members_;
  std::vector<int64_t> swapped_;
};

// Draws without replacement with weights p correspond to the order of arrival of exponential clocks
// with rates p (Efraimidis and Spirakis, 2006). The result is the slots with the K smallest Exp(1)
// / p_g, smallest first.
class SlotDraws {
 public:
  explicit SlotDraws(std::vector<double> weights)
      : weights_(std::move(weights)), arrivals_(weights_.size()) {}

  void Append(RandomWords words, int64_t count, std::vector<int32_t>& out) {
    for (size_t g = 0; g < weights_.size(); ++g) {
      const auto word = static_cast<uint32_t>(2 * g);
      // In [0, 1), so the logarithm is finite.
      const double uniform = ToUniform(words(word), words(word + 1));
      arrivals_[g] = {-std::log1p(-uniform) / weights_[g], static_cast<int32_t>(g)};
    }
    std::partial_sort(arrivals_.begin(), arrivals_.begin() + count, arrivals_.end());
    for (int64_t j = 0; j < count; ++j) out.push_back(arrivals_[static_cast<size_t>(j)].second);
  }

 private:
  std::vector<double> weights_;
  std::vector<std::pair<double, int32_t>> arrivals_;  // time, slot
};

// Replaces the zeros of one row by random tokens.
void Fill(const MqarConfig& config, uint64_t example, int32_t* inputs) {
  RandomWords words = Words(config.seed, Stream::kFill, example);
  for (int64_t t = 0; t < config.seq_len; ++t) {
    if (inputs[t] == 0)
      inputs[t] = static_cast<int32_t>(words.Below(static_cast<uint32_t>(t), config.vocab_size));
  }
}

}  // namespace

void CheckMqar(const MqarConfig& config) {
  HL_CHECK_AS(ExitCode::kUsage, config.seq_len >= 4 && config.seq_len % 2 == 0, "rows of seq_len ",
              config.seq_len, " tokens: pairs and slots take two tokens each. Use ",
              std::max<int64_t>(4, config.seq_len + 1), ".");
  HL_CHECK_AS(ExitCode::kUsage, config.vocab_size > config.seq_len, "a vocabulary of ",
              config.vocab_size, " tokens with rows of seq_len ", config.seq_len, ". Use at least ",
              config.seq_len + 1, " tokens.");
  HL_CHECK_AS(ExitCode::kUsage, config.num_pairs >= 1 && config.num_pairs <= config.seq_len / 4,
              "num_pairs ", config.num_pairs, ": pairs and their query slots take 4 x ",
              config.num_pairs, " tokens of rows of seq_len ", config.seq_len, ". Use 1 to ",
              config.seq_len / 4, ".");
  HL_CHECK_AS(ExitCode::kUsage, config.power > 0 && std::isfinite(config.power), "power ",
              config.power,
              ": the slots' weights are power x slot^(power - 1). Use a number above 0, ",
              "for example 0.01, or 1 for equal weights.");
  for (const double weight : MqarSlotWeights(config))
    HL_CHECK_AS(ExitCode::kUsage, std::isfinite(weight) && weight > 0, "power ", config.power,
                ": the slots' weights, power x slot^(power - 1), are not positive finite numbers "
                "in fp64. Use a number ",
                "nearer to 1, for example 0.01.");
}

std::vector<double> MqarSlotWeights(const MqarConfig& config) {
  const int64_t num_slots = (config.seq_len - 2 * config.num_pairs) / 2;
  std::vector<double> weights;
  for (int64_t g = 0; g < num_slots; ++g) {
    weights.push_back(config.power * std::pow(static_cast<double>(g + 1), config.power - 1));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= total;
  return weights;
}

MqarDraws DrawMqar(const MqarConfig& config, int64_t first, int64_t count) {
  CheckMqar(config);
  const int64_t first_value = config.vocab_size / 2;
  DistinctDraws keys(first_value - 1), values(config.vocab_size - first_value);
  SlotDraws slots(MqarSlotWeights(config));
  MqarDraws draws;
  for (int64_t i = first; i < first + count; ++i) {
    const auto words = [&](Stream stream) {
      return Words(config.seed, stream, static_cast<uint64_t>(i));
    };
    keys.Append(words(Stream::kKeys), config.num_pairs, 1, draws.keys);
    values.Append(words(Stream::kValues), config.num_pairs, static_cast<int32_t>(first_value),
                  draws.values);
    slots.Append(words(Stream::kSlots), config.num_pairs, draws.slots);
  }
  return draws;
}

LabelledRows LayOutMqar(const MqarConfig& config, const MqarDraws& draws, int64_t first) {
  const int64_t seq_len = config.seq_len, num_pairs = config.num_pairs;
  const int64_t count = static_cast<int64_t>(draws.keys.size()) / num_pairs;
  LabelledRows rows = {
      .inputs = std::vector<int32_t>(static_cast<size_t>(count * seq_len), 0),
      .labels = std::vector<int32_t>(static_cast<size_t>(count * seq_len), kNoTarget)};
  for (int64_t i = 0; i < count; ++i) {
    int32_t* const inputs = rows.inputs.data() + i * seq_len;
    int32_t* const labels = rows.labels.data() + i * seq_len;
    for (int64_t j = 0; j < num_pairs; ++j) {
      const auto pair = static_cast<size_t>(i * num_pairs + j);
      const int64_t place = 2 * num_pairs + 2 * draws.slots[pair];
      inputs[2 * j] = inputs[place] = draws.keys[pair];
      inputs[2 * j + 1] = labels[place] = draws.values[pair];
    }
    if (config.random_non_queries) Fill(config, static_cast<uint64_t>(first + i), inputs);
  }
  return rows;
}

}  // namespace halflife::data
