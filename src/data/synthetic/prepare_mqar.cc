#include "data/synthetic/prepare_mqar.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/human.h"
#include "data/batch.h"
#include "data/manifest.h"
#include "data/prepare/ordered_pipeline.h"
#include "data/prepare/publish_dataset.h"
#include "data/prepare/shard_writer.h"
#include "data/synthetic/mqar.h"
#include "data/synthetic/numpy_mqar.h"

namespace halflife::data {
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
