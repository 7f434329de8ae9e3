#include "data/synthetic/mqar.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/human.h"
#include "data/batch.h"
#include "data/manifest.h"
#include "data/prepare/ordered_pipeline.h"
#include "data/prepare/publish_dataset.h"
#include "data/prepare/shard_writer.h"
#include "data/random_words.h"
#include "data/synthetic/numpy_mqar.h"

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

namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnitTokens = 1 << 18;  // approximate tokens of one unit of work

const char* Name(MqarGenerator generator) {
  return generator == MqarGenerator::kNative ? "mqar native" : "mqar numpy_compat";
}

MqarConfig RowsOf(const PrepareMqarConfig& config, const MqarSegment& segment, uint64_t seed) {
  return {.vocab_size = config.vocab_size,
          .seq_len = segment.seq_len,
          .num_pairs = segment.num_pairs,
          .power = config.power,
          .random_non_queries = config.random_non_queries,
          .seed = seed};
}

uint64_t SeedOf(const PrepareMqarConfig& config, Split split, size_t segment) {
  constexpr uint64_t kOfSplit[] = {0, 20, 10};  // for train, validation, test
  return config.seed + kOfSplit[static_cast<size_t>(split)] + 100 * segment;
}

void CheckConfig(const PrepareMqarConfig& config) {
  HL_CHECK_AS(ExitCode::kUsage, !config.train.empty(),
              "the training split has no rows. Use --examples 1 or more.");
  config.output.Check();
  for (const auto* split : {&config.train, &config.validation, &config.test}) {
    for (const MqarSegment& segment : *split) {
      HL_CHECK_AS(ExitCode::kUsage, segment.num_examples >= 1, "a segment of ",
                  segment.num_examples, " examples. Use 1 or more.");
      CheckMqar(RowsOf(config, segment, config.seed));
    }
  }
}

int64_t LongestRow(const PrepareMqarConfig& config) {
  int64_t longest = 0;
  for (const auto* split : {&config.train, &config.validation, &config.test}) {
    for (const MqarSegment& segment : *split) longest = std::max(longest, segment.seq_len);
  }
  return longest;
}

// The rows of one segment, in order. NumPy's draws are sequential and are made where units are
// read. Native draws are made by the threads that process units.
class SegmentRows {
 public:
  struct Unit {
    int64_t first = 0, count = 0;
    MqarDraws draws;  // empty if not drawn yet
  };

  SegmentRows(const MqarConfig& rows, MqarGenerator generator, int64_t num_examples)
      : rows_(rows), num_examples_(num_examples) {
    if (generator == MqarGenerator::kNumpyCompat)
      numpy_ = std::make_unique<NumpyMqarDraws>(rows, num_examples);
  }

  std::optional<Unit> Next() {
    const int64_t most = std::max<int64_t>(1, kUnitTokens / rows_.seq_len);
    Unit unit = {.first = next_, .count = std::min(most, num_examples_ - next_), .draws = {}};
    if (unit.count == 0) return std::nullopt;
    next_ += unit.count;
    if (numpy_ != nullptr) unit.draws = numpy_->Next(unit.count);
    return unit;
  }

  // Thread-safe.
  LabelledRows LayOut(const Unit& unit) const {
    if (numpy_ != nullptr) return LayOutMqar(rows_, unit.draws, unit.first);
    return LayOutMqar(rows_, DrawMqar(rows_, unit.first, unit.count), unit.first);
  }

 private:
  const MqarConfig rows_;
  const int64_t num_examples_;
  std::unique_ptr<NumpyMqarDraws> numpy_;  // null for the native generator
  int64_t next_ = 0;
};

// One run of `prepare`.
class MqarRun {
 public:
  explicit MqarRun(const PrepareMqarConfig& config)
      : config_(config), row_len_(LongestRow(config)), threads_(config.output.NumThreads()) {
    progress_.phase = "generating";
    for (const auto* split : {&config.train, &config.validation, &config.test}) {
      for (const MqarSegment& segment : *split)
        progress_.total_disk_bytes += RowBytes() * static_cast<uint64_t>(segment.num_examples);
    }
  }

  Manifest WriteFiles(const fs::path& folder) {
    return {.tokenizer_kind = "",
            .vocab_size = config_.vocab_size,
            .eos_id = -1,
            .train = WriteSplit(folder, Split::kTrain, config_.train),
            .validation = WriteSplit(folder, Split::kValidation, config_.validation),
            .test = WriteSplit(folder, Split::kTest, config_.test),
            .row_len = row_len_,
            .generator = Name(config_.generator),
            .generator_version = kMqarVersion,
            .parameters = {{"power", ShortestText(config_.power)},
                           {"random_non_queries", config_.random_non_queries ? "true" : "false"},
                           {"seed", Concat(config_.seed)}},
            .labels = RowLabels::kTask};
  }

  MqarSummary Summarise(const Manifest& manifest) const {
    return {.train = manifest.train.info,
            .validation = manifest.validation.info,
            .test = manifest.test.info,
            .row_len = manifest.row_len,
            .seconds = 0,
            .hash = manifest.hash};
  }

 private:
  uint64_t RowBytes() const {
    return static_cast<uint64_t>(row_len_) *
           static_cast<uint64_t>(TokenBytes(config_.vocab_size) + 4);
  }

  SplitRecord WriteSplit(const fs::path& folder, Split split,
                         const std::vector<MqarSegment>& segments) {
    ShardWriter writer({.folder = folder,
                        .split = split,
                        .token_bytes = TokenBytes(config_.vocab_size),
                        .shard_tokens = config_.output.shard_tokens,
                        .labels = true});
    std::vector<Segment> written;
    for (size_t i = 0; i < segments.size(); ++i) {
      const MqarSegment& segment = segments[i];
      const uint64_t seed = SeedOf(config_, split, i);
      WriteSegment(segment, RowsOf(config_, segment, seed), writer);
      written.push_back({Concat("seq_len=", segment.seq_len, ",num_kv_pairs=", segment.num_pairs),
                         segment.num_examples, seed});
    }
    SplitRecord record = writer.Finish();
    record.info.segments = std::move(written);
    return record;
  }

  void WriteSegment(const MqarSegment& segment, const MqarConfig& rows, ShardWriter& writer) {
    SegmentRows source(rows, config_.generator, segment.num_examples);
    std::vector<int32_t> inputs(static_cast<size_t>(row_len_), 0);
    std::vector<int32_t> labels(static_cast<size_t>(row_len_), kNoTarget);
    RunOrdered<SegmentRows::Unit, LabelledRows>(
        threads_,
        [&] {
          config_.output.RequireGoingOn();
          return source.Next();
        },
        [&](const SegmentRows::Unit& unit) { return source.LayOut(unit); },
        [&](const LabelledRows& unit) {
          const auto width = static_cast<int64_t>(segment.seq_len);
          for (size_t at = 0; at < unit.inputs.size(); at += static_cast<size_t>(width)) {
            std::copy_n(unit.inputs.begin() + static_cast<int64_t>(at), width, inputs.begin());
            std::copy_n(unit.labels.begin() + static_cast<int64_t>(at), width, labels.begin());
            writer.AppendLabelled(inputs, labels);
            progress_.disk_bytes += RowBytes();
          }
          config_.output.Report(progress_);
        });
  }

  const PrepareMqarConfig& config_;
  const int64_t row_len_;
  const int threads_;
  PrepareProgress progress_;
};

}  // namespace

MqarSummary PrepareMqar(const PrepareMqarConfig& config) {
  CheckConfig(config);
  return PublishDataset<MqarRun>(config);
}

}  // namespace halflife::data
