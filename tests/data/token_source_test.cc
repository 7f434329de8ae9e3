// The stream of batches: each sample once per epoch, in an order that does not depend on ranks,
// micro-batches or resumes.
#include "data/token_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "core/concat.h"
#include "data/small_datasets.h"
#include "data/synthetic/mqar.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

using halflife::test::TempDir;
using Ids = std::vector<int32_t>;

class TokenSourceTest : public testing::Test {
 protected:
  void SetUp() override {
    test::WriteText(dir_ / "a.txt", test::JoinByBlankLines(test::RandomDocuments(400, 1)));
    PrepareConfig config = test::ByteConfig(dir_ / "a.txt", dir_ / "out");
    config.output.shard_tokens = 32768;
    Prepare(config);
    dataset_ = std::make_unique<Dataset>(Dataset::Open(dir_ / "out"));
    all_ = test::ReadAll(*dataset_, Split::kTrain);
  }

  TokenSource Source(TokenSourceConfig config) {
    return TokenSource(*dataset_, Split::kTrain, config);
  }

  TempDir dir_;
  std::unique_ptr<Dataset> dataset_;
  std::vector<int32_t> all_;
};

std::vector<int32_t> Row(const std::vector<int32_t>& values, int64_t row, int64_t seq_len) {
  return {values.begin() + row * seq_len, values.begin() + (row + 1) * seq_len};
}

// Returns a hash of everything in a batch.
std::string Fingerprint(const Batch& batch) {
  std::string text = Concat(batch.batch_size, "x", batch.seq_len, "/", batch.num_targets, ":");
  for (const auto& values : {batch.inputs, batch.targets, batch.cu_seqlens}) {
    for (const int32_t value : values) text += Concat(value, " ");
  }
  for (const uint64_t sample : batch.samples) text += Concat("#", sample);
  return text;
}

TEST_F(TokenSourceTest, EachWindowOnceAnEpoch) {
  constexpr int64_t kSeqLen = 100;
  TokenSource source = Source({.seq_len = kSeqLen, .micro_batch = 1, .global_batch = 1});
  const int64_t windows = source.num_windows();
  ASSERT_EQ(windows, (static_cast<int64_t>(all_.size()) - 1) / kSeqLen);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::map<std::vector<int32_t>, int> expected, seen;
    for (int64_t w = 0; w < windows; ++w) {
      ++expected[{all_.begin() + w * kSeqLen, all_.begin() + (w + 1) * kSeqLen}];
    }
    for (int64_t w = 0; w < windows; ++w) ++seen[source.Next().inputs];
    EXPECT_EQ(seen, expected) << "epoch " << epoch;
  }
}

TEST_F(TokenSourceTest, SampleIsThePermutedWindow) {
  constexpr int64_t kSeqLen = 64;
  TokenSource source = Source({.seq_len = kSeqLen, .micro_batch = 3, .global_batch = 6, .seed = 9});
  const auto windows = static_cast<uint64_t>(source.num_windows());
  source.Seek(windows / 6 * 6);  // Across the end of the first epoch.
  for (int i = 0; i < 4; ++i) {
    const Batch batch = source.Next();
    for (int64_t row = 0; row < 3; ++row) {
      const uint64_t g = batch.samples[static_cast<size_t>(row)];
      const auto begin =
          static_cast<int64_t>(PermuteIndex(g % windows, windows, 9, g / windows)) * kSeqLen;
      EXPECT_EQ(Row(batch.inputs, row, kSeqLen),
                std::vector<int32_t>(all_.begin() + begin, all_.begin() + begin + kSeqLen));
    }
  }
}

// Two ranks together read the rows of one rank. Every row is that of the blend's order.
TEST_F(TokenSourceTest, ABlendReadsTheRowsOfItsSources) {
  constexpr int64_t kSeqLen = 64;
  const auto make = [&](int rank, int ranks) {
    std::vector<TokenView> views;
    std::vector<BlendSource> sources;
    for (const char* name : {"a", "b"}) {
      views.push_back(ViewOf(*dataset_, Split::kTrain));
      sources.push_back({.name = name,
                         .num_windows = NumWindows(views.back(), kSeqLen),
                         .seed = BlendSeed(3, name)});
    }
    Blend blend(sources, 3);
    const double weights[] = {2, 1};
    blend.Begin(0, BlendCounts(weights));
    return std::make_unique<TokenSource>(views, blend,
                                         TokenSourceConfig{.seq_len = kSeqLen,
                                                           .micro_batch = 3,
                                                           .global_batch = 6,
                                                           .dp_rank = rank,
                                                           .dp_size = ranks});
  };
  const auto one = make(0, 1), left = make(0, 2), right = make(1, 2);
  one->Seek(600), left->Seek(600), right->Seek(600);
  for (int step = 0; step < 20; ++step) {
    for (const auto& half : {left.get(), right.get()}) {
      const Batch batch = one->Next();
      EXPECT_EQ(Fingerprint(batch), Fingerprint(half->Next()));
      for (int64_t row = 0; row < 3; ++row) {
        const Blend::Row at = one->blend()->At(batch.samples[static_cast<size_t>(row)]);
        const Batch expected = ReadWindows(*dataset_, Split::kTrain, kSeqLen, at.window, 1);
        EXPECT_EQ(Row(batch.inputs, row, kSeqLen), expected.inputs);
      }
    }
  }
}

TEST_F(TokenSourceTest, TargetsAndBoundaries) {
  constexpr int64_t kSeqLen = 50, kRows = 7;
  const int32_t eos = dataset_->info().eos_id;
  const Batch batch = ReadWindows(*dataset_, Split::kTrain, kSeqLen, 3, kRows);
  std::vector<int32_t> boundaries;
  int64_t num_targets = 0;
  for (int64_t i = 0; i < kRows * kSeqLen; ++i) {
    const auto at = static_cast<size_t>(i), global = static_cast<size_t>(3 * kSeqLen + i);
    EXPECT_EQ(batch.inputs[at], all_[global]);
    // eos is the last target of its document and has none itself, also across the end of a row.
    EXPECT_EQ(batch.targets[at], all_[global] == eos ? kNoTarget : all_[global + 1]);
    num_targets += all_[global] != eos;
    if (i % kSeqLen == 0 || all_[global - 1] == eos) boundaries.push_back(static_cast<int32_t>(i));
  }
  boundaries.push_back(kRows * kSeqLen);
  EXPECT_EQ(batch.cu_seqlens, boundaries);
  EXPECT_GT(boundaries.size(), static_cast<size_t>(kRows + 1)) << "the text should hold a boundary";
  EXPECT_EQ(batch.num_targets, num_targets);
  EXPECT_EQ(batch.samples, (std::vector<uint64_t>{3, 4, 5, 6, 7, 8, 9}));
}

// The reference packs the split as plain next-token rows without documents.
TEST_F(TokenSourceTest, WithoutResetsARowIsOneSequence) {
  constexpr int64_t kSeqLen = 50, kRows = 7, kFirst = 3;
  const Batch batch = ReadWindows(ViewOf(*dataset_, Split::kTrain, /*reset_at_documents=*/false),
                                  kSeqLen, kFirst, kRows);
  const auto begin = all_.begin() + kFirst * kSeqLen;
  EXPECT_EQ(batch.inputs, Ids(begin, begin + kRows * kSeqLen));
  EXPECT_EQ(batch.targets, Ids(begin + 1, begin + kRows * kSeqLen + 1));
  EXPECT_GT(std::ranges::count(batch.inputs, dataset_->info().eos_id), 0) << "of documents";
  EXPECT_EQ(batch.num_targets, kRows * kSeqLen);
  Ids row_starts;
  for (int32_t row = 0; row <= kRows; ++row) row_starts.push_back(row * kSeqLen);
  EXPECT_EQ(batch.cu_seqlens, row_starts);

  TokenSourceConfig config{.seq_len = kSeqLen, .micro_batch = kRows, .global_batch = kRows};
  TokenSource resets = Source(config);
  config.reset_at_documents = false;
  TokenSource continues = Source(config);
  for (int step = 0; step < 3; ++step) {
    const Batch expected = resets.Next(), read = continues.Next();
    EXPECT_EQ(read.inputs, expected.inputs) << "the same rows";
    EXPECT_EQ(read.samples, expected.samples);
    EXPECT_EQ(read.num_targets, kRows * kSeqLen);
    EXPECT_LT(expected.num_targets, read.num_targets) << "of eos";
    EXPECT_EQ(read.cu_seqlens, row_starts);
  }
}

TEST_F(TokenSourceTest, BoundariesAgreeWithTheDocumentStarts) {
  constexpr int64_t kSeqLen = 128;
  const int64_t windows = NumWindows(ViewOf(*dataset_, Split::kTrain), kSeqLen);
  for (int64_t w = 0; w < windows; ++w) {
    const Batch batch = ReadWindows(*dataset_, Split::kTrain, kSeqLen, w, 1);
    std::set<int32_t> expected = {0, kSeqLen};
    for (const int64_t start :
         dataset_->DocumentStarts(Split::kTrain, w * kSeqLen, (w + 1) * kSeqLen)) {
      expected.insert(static_cast<int32_t>(start - w * kSeqLen));
    }
    EXPECT_EQ(std::set<int32_t>(batch.cu_seqlens.begin(), batch.cu_seqlens.end()), expected);
    EXPECT_TRUE(
        std::is_sorted(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), std::less_equal<>()))
        << "strictly ascending";
  }
}

// Returns the row of every sample of the first steps, for a given layout.
std::map<uint64_t, std::vector<int32_t>> SamplesOf(const Dataset& dataset, int dp_size,
                                                   int64_t micro_batch, int prefetch,
                                                   std::vector<uint64_t>* order) {
  constexpr int64_t kSeqLen = 64, kGlobalBatch = 72, kSteps = 3;
  std::map<uint64_t, std::vector<int32_t>> samples;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < dp_size; ++rank) {
      TokenSource source(dataset, Split::kTrain,
                         {.seq_len = kSeqLen,
                          .micro_batch = micro_batch,
                          .global_batch = kGlobalBatch,
                          .dp_rank = rank,
                          .dp_size = dp_size,
                          .seed = 4,
                          .prefetch = prefetch});
      source.Seek(static_cast<uint64_t>(step * kGlobalBatch));
      for (int64_t micro = 0; micro < kGlobalBatch / (micro_batch * dp_size); ++micro) {
        const Batch batch = source.Next();
        EXPECT_EQ(source.next_sample(),
                  static_cast<uint64_t>(step * kGlobalBatch + (micro + 1) * micro_batch * dp_size));
        for (int64_t row = 0; row < micro_batch; ++row) {
          const uint64_t g = batch.samples[static_cast<size_t>(row)];
          order->push_back(g);
          EXPECT_TRUE(samples.emplace(g, Row(batch.inputs, row, kSeqLen)).second) << g << " twice";
        }
      }
    }
  }
  return samples;
}

TEST_F(TokenSourceTest, LayoutNeverChangesTheSamples) {
  std::vector<uint64_t> order;
  const auto expected = SamplesOf(*dataset_, 1, 72, 0, &order);
  ASSERT_EQ(expected.size(), 216u);
  for (const int dp_size : {1, 2, 3, 4, 8}) {
    for (const int64_t micro_batch : {1, 3}) {
      for (const int prefetch : {0, 3}) {
        std::vector<uint64_t> visited;
        EXPECT_EQ(SamplesOf(*dataset_, dp_size, micro_batch, prefetch, &visited), expected);
        // Ranks have contiguous shares, so reading rank after rank gives the global order.
        EXPECT_EQ(visited, order) << "dp " << dp_size << ", micro batch " << micro_batch;
      }
    }
  }
}

// Micro-batches with the same number are adjacent: iterating over numbers and then ranks gives the
// global order.
TEST_F(TokenSourceTest, RanksMayTakeMicroBatchesInTurn) {
  std::deque<TokenSource> ranks;
  for (const int rank : {0, 1, 2, 3}) {
    ranks.emplace_back(*dataset_, Split::kTrain,
                       TokenSourceConfig{.seq_len = 64,
                                         .micro_batch = 3,
                                         .global_batch = 36,
                                         .dp_rank = rank,
                                         .dp_size = 4,
                                         .in_turn = true});
  }
  uint64_t expected = 0;
  for (int micro = 0; micro < 2 * 3; ++micro) {
    for (TokenSource& source : ranks) {
      for (const uint64_t sample : source.Next().samples) EXPECT_EQ(sample, expected++);
    }
  }
}

TEST_F(TokenSourceTest, SeekEqualsNeverHavingStopped) {
  for (const int prefetch : {0, 1, 4}) {
    const TokenSourceConfig config{.seq_len = 64,
                                   .micro_batch = 2,
                                   .global_batch = 8,
                                   .dp_rank = 1,
                                   .dp_size = 2,
                                   .seed = 3,
                                   .prefetch = prefetch};
    TokenSource whole = Source(config);
    std::vector<std::string> expected;
    for (int i = 0; i < 20; ++i) expected.push_back(Fingerprint(whole.Next()));
    TokenSource source = Source(config);
    for (const uint64_t step : {0, 7, 2, 9}) {  // Two micro-batches per step.
      source.Seek(8 * step);
      EXPECT_EQ(source.next_sample(), 8 * step);
      EXPECT_EQ(Fingerprint(source.Next()), expected[2 * step]);
      EXPECT_EQ(Fingerprint(source.Next()), expected[2 * step + 1]);
    }
  }
}

// A short step has all remaining rows of the epoch, and then padding without targets.
TEST_F(TokenSourceTest, AStepMayEndWithItsEpoch) {
  TokenSourceConfig config{.seq_len = 64, .micro_batch = 2, .global_batch = 8, .dp_size = 2};
  config.epoch_end = EpochEnd::kShort;
  const SampleOrder order = Source(config).order();
  ASSERT_NE(order.num_windows % 8, 0) << "the last step should be short";
  std::vector<uint64_t> seen;
  int64_t num_padding = 0;
  for (int64_t step = 0; step < 2 * order.StepsPerEpoch(); ++step) {
    for (config.dp_rank = 0; config.dp_rank < 2; ++config.dp_rank) {
      TokenSource source = Source(config);
      source.Seek(order.FirstSample(static_cast<uint64_t>(step)));
      for (int micro = 0; micro < 2; ++micro) {
        const Batch batch = source.Next();
        EXPECT_EQ(batch.inputs.size(), 128u);
        EXPECT_EQ(batch.cu_seqlens.back(), 128);
        for (int64_t row = 0; row < 2; ++row) {
          const uint64_t sample = batch.samples[static_cast<size_t>(row)];
          if (sample != kNoSample) {
            seen.push_back(sample);
            continue;
          }
          ++num_padding;
          EXPECT_EQ(Row(batch.targets, row, 64), std::vector<int32_t>(64, kNoTarget));
        }
      }
      EXPECT_EQ(source.next_sample(), order.FirstSample(static_cast<uint64_t>(step) + 1));
    }
  }
  std::vector<uint64_t> each_once(static_cast<size_t>(2 * order.num_windows));
  std::iota(each_once.begin(), each_once.end(), uint64_t{0});
  EXPECT_EQ(seen, each_once);
  EXPECT_EQ(num_padding, 2 * (8 - order.num_windows % 8));

  config.dp_rank = 0;
  config.epoch_end = EpochEnd::kDrop;
  config.global_batch = 4 * (order.num_windows / 4 + 1);
  EXPECT_HL_ERROR(Source(config), ExitCode::kUsage, "data.epoch_end drop",
                  Concat("at most ", order.num_windows));
}

TEST_F(TokenSourceTest, LabelledRowsAreWholeAndKeepTheirLabels) {
  PrepareMqar({.train = {{16, 4, 30}},
               .vocab_size = 64,
               .seed = 3,
               .output = {.out = dir_ / "mqar", .threads = 1}});
  const Dataset rows = Dataset::Open(dir_ / "mqar");
  const Ids inputs = test::ReadAll(rows, Split::kTrain);
  Ids labels(inputs.size());
  rows.ReadLabels(Split::kTrain, 0, labels);
  const TokenSourceConfig config{.seq_len = 16, .micro_batch = 5, .global_batch = 5, .seed = 9};
  TokenSource source(rows, Split::kTrain, config);
  ASSERT_EQ(source.num_windows(), 30);
  std::vector<Ids> epochs(2);
  for (Ids& order : epochs) {
    for (int micro = 0; micro < 6; ++micro) {
      const Batch batch = source.Next();
      EXPECT_EQ(batch.num_targets, 5 * 4);
      EXPECT_EQ(batch.cu_seqlens, (Ids{0, 16, 32, 48, 64, 80}));
      for (int64_t row = 0; row < 5; ++row) {
        const uint64_t sample = batch.samples[static_cast<size_t>(row)];
        const auto number = static_cast<int64_t>(PermuteIndex(sample % 30, 30, 9, sample / 30));
        EXPECT_EQ(Row(batch.inputs, row, 16), Row(inputs, number, 16));
        EXPECT_EQ(Row(batch.targets, row, 16), Row(labels, number, 16));
        order.push_back(static_cast<int32_t>(number));
      }
    }
  }
  EXPECT_NE(epochs[0], epochs[1]) << "each epoch has an order of its own";
  std::sort(epochs[0].begin(), epochs[0].end());
  std::sort(epochs[1].begin(), epochs[1].end());
  EXPECT_EQ(epochs[0], epochs[1]);
  EXPECT_HL_ERROR(TokenSource(rows, Split::kTrain, {.seq_len = 8, .micro_batch = 1}),
                  ExitCode::kUsage, "seq_len 8", "rows of 16 tokens", "to 16");
}

TEST_F(TokenSourceTest, SizesThatDoNotFit) {
  EXPECT_HL_ERROR(Source({.seq_len = 8, .micro_batch = 3, .global_batch = 8, .dp_size = 2}),
                  ExitCode::kUsage, "global_batch 8", "micro_batch 3 x dp size 2 = 6", "Use 12.");
  EXPECT_HL_ERROR(Source({.seq_len = 0}), ExitCode::kUsage, "seq_len 0");
  EXPECT_HL_ERROR(Source({.dp_rank = 2, .dp_size = 2}), ExitCode::kUsage, "dp rank 2");
  TokenSource source = Source({.seq_len = 8, .micro_batch = 4, .global_batch = 8});
  EXPECT_HL_ERROR(source.Seek(3), ExitCode::kInternal, "sample 3 does not begin a step");
}

TEST_F(TokenSourceTest, TooFewTokens) {
  const auto tokens = static_cast<int64_t>(all_.size());
  EXPECT_EQ(Source({.seq_len = tokens - 1, .micro_batch = 1, .global_batch = 1}).num_windows(), 1);
  EXPECT_HL_ERROR(Source({.seq_len = tokens}), ExitCode::kData, "train split", "out",
                  Concat(tokens, " tokens"), Concat("seq_len + 1 = ", tokens + 1),
                  Concat("seq_len to ", tokens - 1));
  const auto of_text = [](int64_t num_tokens) {
    return NumWindows({.num_tokens = num_tokens}, /*row_len=*/0, /*seq_len=*/8);
  };
  EXPECT_EQ(of_text(0), 0);
  EXPECT_EQ(of_text(8), 0);
  EXPECT_EQ(of_text(9), 1);
}

TEST_F(TokenSourceTest, ReaderErrorsReachNext) {
  const auto path = dir_ / "out/train-00000.h5";
  std::string bytes = test::ReadText(path);
  // Damages the second half of the shard after Open has read its header.
  for (size_t at = bytes.size() / 2; at < bytes.size(); ++at) bytes[at] = '\x55';
  test::WriteText(path, bytes);
  for (const int prefetch : {0, 4}) {
    dataset_ = std::make_unique<Dataset>(Dataset::Open(dir_ / "out"));  // Has read nothing yet.
    TokenSource source =
        Source({.seq_len = 64, .micro_batch = 8, .global_batch = 8, .prefetch = prefetch});
    const auto read_epoch = [&] {
      for (int64_t i = 0; i <= source.num_windows() / 8; ++i) source.Next();
    };
    EXPECT_HL_ERROR(read_epoch(), ExitCode::kData, "train-00000.h5");
    if (prefetch > 0)
      EXPECT_HL_ERROR(source.Next(), ExitCode::kData, "train-00000.h5");  // The error is permanent.
  }
}

TEST_F(TokenSourceTest, MeasuresWaiting) {
  TokenSource source = Source({.seq_len = 64, .micro_batch = 8, .global_batch = 8, .prefetch = 0});
  EXPECT_EQ(source.TakeWaitSeconds(), 0.0);
  for (int i = 0; i < 10; ++i) source.Next();
  EXPECT_GT(source.TakeWaitSeconds(), 0.0);
  EXPECT_EQ(source.TakeWaitSeconds(), 0.0);
}

}  // namespace
}  // namespace halflife::data
