// The generators of associative recall: published datasets are reproduced, and every row follows
// the rules of the task.
#include "data/synthetic/mqar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "core/concat.h"
#include "data/batch.h"
#include "data/synthetic/numpy_mqar.h"
#include "data/synthetic/sha256.h"
#include "support/expect_error.h"

namespace halflife::data {
namespace {

using Ids = std::vector<int32_t>;

Ids Part(const Ids& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

// Common interface of the two generators.
using Draw = MqarDraws (*)(const MqarConfig& config, int64_t count);
MqarDraws Native(const MqarConfig& config, int64_t count) { return DrawMqar(config, 0, count); }
MqarDraws Numpy(const MqarConfig& config, int64_t count) {
  return NumpyMqarDraws(config, count).Next(count);
}
constexpr Draw kGenerators[] = {Native, Numpy};

// ---- Published datasets ----

TEST(NumpyMqar, GoldenTinyRows) {
  const MqarConfig config{.vocab_size = 64, .seq_len = 24, .num_pairs = 3, .seed = 42};
  const MqarDraws draws = Numpy(config, 2);
  EXPECT_EQ(draws.keys, (Ids{28, 16, 24, 1, 6, 21}));
  EXPECT_EQ(draws.values, (Ids{36, 58, 42, 50, 35, 37}));
  EXPECT_EQ(draws.slots, (Ids{0, 5, 2, 0, 2, 5}));
  const LabelledRows rows = LayOutMqar(config, draws, 0);
  EXPECT_EQ(Part(rows.inputs, 0, 24),
            (Ids{28, 36, 16, 58, 24, 42, 28, 0, 0, 0, 24, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0}));
  Ids labels(24, kNoTarget);
  labels[6] = 36, labels[10] = 42, labels[16] = 58;
  EXPECT_EQ(Part(rows.labels, 0, 24), labels);
}

// Arrays of int64, little endian, as in NumPy.
class Int64Hash {
 public:
  void Add(const Ids& ids) {
    for (const int32_t id : ids) {
      for (int byte = 0; byte < 8; ++byte)
        bytes_.push_back(static_cast<uint8_t>(static_cast<uint64_t>(int64_t{id}) >> 8 * byte));
    }
    sha_.Add(bytes_);
    bytes_.clear();
  }
  std::string Finish() { return sha_.Finish(16); }

 private:
  test::Sha256 sha_;
  std::vector<uint8_t> bytes_;
};

struct Golden {
  int64_t seq_len, num_pairs;
  const char *inputs, *labels;
};

void ExpectHashes(const Golden& golden, int64_t num_examples, uint64_t seed) {
  const MqarConfig config{.seq_len = golden.seq_len, .num_pairs = golden.num_pairs, .seed = seed};
  NumpyMqarDraws draws(config, num_examples);
  Int64Hash inputs, labels;
  for (int64_t first = 0; first < num_examples; first += 500) {
    const LabelledRows rows = LayOutMqar(config, draws.Next(500), first);
    inputs.Add(rows.inputs);
    labels.Add(rows.labels);
  }
  EXPECT_EQ(inputs.Finish(), golden.inputs) << golden.seq_len << ", seed " << seed;
  EXPECT_EQ(labels.Finish(), golden.labels) << golden.seq_len << ", seed " << seed;
}

// The test sets of the ReBased runs.
TEST(NumpyMqar, TestSetsAreThePublishedOnes) {
  const Golden sets[] = {{48, 12, "9b9848f3f08eb55c", "c74cde3e3978ae81"},
                         {128, 16, "4f11da0817779414", "dc5c7288e58c6eb4"},
                         {256, 64, "bae9245c304dd77e", "cde903ea70fcc2ef"},
                         {512, 128, "9dd79e5e49079365", "110e492be1cf825e"},
                         {1024, 256, "032d705132985e0e", "70a2e9514c2bc913"},
                         {2048, 512, "3aeca75982818c03", "f54f1a32812630f9"}};
  for (const Golden& set : sets) ExpectHashes(set, 3000, 52);
}

// The training sets, which take about 15 seconds each. Run with --gtest_also_run_disabled_tests.
TEST(NumpyMqar, DISABLED_TrainingSetsAreThePublishedOnes) {
  const Golden sets[] = {{48, 12, "81dc4c65d815c0d0", "2028dc9e49ec1442"},
                         {128, 16, "b4b2b53255699ff1", "cd857d05a9dfd3e2"},
                         {256, 64, "fafc9b16ce582b73", "dc9ea4646bfa2401"},
                         {512, 128, "966c433d8807f7a2", "7470c514276e0d6b"},
                         {1024, 256, "bde7d5ab894d63ed", "c2a2a34080056c34"},
                         {2048, 512, "d280df7c21d136ad", "1baff802afb18172"}};
  for (const Golden& set : sets) ExpectHashes(set, 100000, 42);
}

// ---- Rules for every row ----

void ExpectRow(const MqarConfig& config, const LabelledRows& rows, int64_t row) {
  const int64_t seq_len = config.seq_len, pairs_end = 2 * config.num_pairs;
  const Ids inputs = Part(rows.inputs, row * seq_len, seq_len);
  const Ids labels = Part(rows.labels, row * seq_len, seq_len);
  std::map<int32_t, int32_t> value_of;
  std::set<int32_t> values;
  for (int64_t at = 0; at < pairs_end; at += 2) {
    const int32_t key = inputs[at], value = inputs[at + 1];
    EXPECT_TRUE(key >= 1 && key < config.vocab_size / 2) << key;
    EXPECT_TRUE(value >= config.vocab_size / 2 && value < config.vocab_size) << value;
    value_of[key] = value;
    values.insert(value);
  }
  EXPECT_EQ(static_cast<int64_t>(value_of.size()), config.num_pairs) << "keys are distinct";
  EXPECT_EQ(static_cast<int64_t>(values.size()), config.num_pairs) << "values are distinct";
  int64_t num_labels = 0;
  for (int64_t at = 0; at < seq_len; ++at) {
    if (labels[at] == kNoTarget) {
      EXPECT_TRUE(at < pairs_end || config.random_non_queries || inputs[at] == 0) << at;
      continue;
    }
    ++num_labels;
    EXPECT_TRUE(at >= pairs_end && at % 2 == 0) << "asks at " << at;
    ASSERT_TRUE(value_of.contains(inputs[at])) << inputs[at] << " is no key of its row";
    EXPECT_EQ(labels[at], value_of[inputs[at]]) << "as a table of the pairs would answer";
  }
  // There are as many labels as pairs, at distinct slots. If K = L / 4, all slots are used.
  EXPECT_EQ(num_labels, config.num_pairs);
}

TEST(Mqar, RowsArePairsAndLaterTheirKeysAndEveryLabelIsTheKeysValue) {
  for (const Draw draw : kGenerators) {
    for (const MqarConfig& config :
         {MqarConfig{.seq_len = 64, .num_pairs = 4}, MqarConfig{.seq_len = 48, .num_pairs = 12},
          MqarConfig{.vocab_size = 65, .seq_len = 64, .num_pairs = 16},
          MqarConfig{.seq_len = 4, .num_pairs = 1, .power = 1},
          MqarConfig{.seq_len = 64, .num_pairs = 7, .random_non_queries = true}}) {
      const LabelledRows rows = LayOutMqar(config, draw(config, 50), 0);
      for (int64_t row = 0; row < 50; ++row) ExpectRow(config, rows, row);
    }
  }
}

TEST(Mqar, ExamplesAreIndependent) {
  const MqarConfig config{.seq_len = 64, .num_pairs = 8};
  for (const Draw draw : kGenerators) {
    const MqarDraws draws = draw(config, 200);
    std::set<Ids> rows;
    for (int64_t i = 0; i < 200; ++i) rows.insert(Part(draws.keys, 8 * i, 8));
    EXPECT_EQ(rows.size(), 200u);
    MqarConfig other = config;
    ++other.seed;
    EXPECT_NE(draw(other, 200).keys, draws.keys);
    EXPECT_NE(draw(other, 200).slots, draws.slots);
  }
}

TEST(Mqar, NativeExamplesAreFunctionsOfSeedAndNumber) {
  const MqarConfig config{.seq_len = 128, .num_pairs = 16, .random_non_queries = true, .seed = 3};
  constexpr int64_t kCount = 120, kThreads = 3, kShare = kCount / kThreads;
  const LabelledRows whole = LayOutMqar(config, DrawMqar(config, 0, kCount), 0);
  std::vector<LabelledRows> shares(kThreads);
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      shares[t] = LayOutMqar(config, DrawMqar(config, t * kShare, kShare), t * kShare);
    });
  }
  for (std::thread& thread : threads) thread.join();
  LabelledRows joined;
  for (const LabelledRows& share : shares) {
    joined.inputs.insert(joined.inputs.end(), share.inputs.begin(), share.inputs.end());
    joined.labels.insert(joined.labels.end(), share.labels.begin(), share.labels.end());
  }
  EXPECT_EQ(joined.inputs, whole.inputs);
  EXPECT_EQ(joined.labels, whole.labels);
}

TEST(Mqar, RandomNonQueriesOnlyReplaceZeros) {
  MqarConfig config{.vocab_size = 256, .seq_len = 64, .num_pairs = 4};
  constexpr int64_t kCount = 300;
  for (const Draw draw : kGenerators) {
    config.random_non_queries = false;
    const LabelledRows plain = LayOutMqar(config, draw(config, kCount), 0);
    config.random_non_queries = true;
    const LabelledRows filled = LayOutMqar(config, draw(config, kCount), 0);
    EXPECT_EQ(filled.labels, plain.labels);
    std::map<int32_t, int64_t> counts;
    int64_t num_filled = 0;
    for (size_t i = 0; i < plain.inputs.size(); ++i) {
      if (plain.inputs[i] != 0) {
        EXPECT_EQ(filled.inputs[i], plain.inputs[i]);
      } else {
        ++counts[filled.inputs[i]];
        ++num_filled;
      }
    }
    // Uniform in [0, V): each count is binomial with mean n / V = 61. The bound is six deviations
    // of 256 counts.
    const double mean = static_cast<double>(num_filled) / config.vocab_size;
    for (int32_t id = 0; id < config.vocab_size; ++id)
      EXPECT_NEAR(static_cast<double>(counts[id]), mean, 6 * std::sqrt(mean)) << id;
    EXPECT_EQ(counts.size(), 256u) << "nothing outside the vocabulary";
  }
}

// ---- The distribution of the slots ----

struct SlotStatistics {
  std::vector<double> occupancy;        // [G] share of rows with a query in the slot.
  std::vector<double> mean, deviation;  // [K] of each pair's slot, and the deviation of the mean.
};

SlotStatistics Statistics(const MqarConfig& config, const MqarDraws& draws) {
  const auto num_pairs = static_cast<size_t>(config.num_pairs);
  const size_t count = draws.slots.size() / num_pairs;
  SlotStatistics result{.occupancy = std::vector<double>(MqarSlotWeights(config).size()),
                        .mean = std::vector<double>(num_pairs),
                        .deviation = std::vector<double>(num_pairs)};
  std::vector<double> squares(num_pairs);
  const auto n = static_cast<double>(count);
  for (size_t i = 0; i < draws.slots.size(); ++i) {
    const double slot = draws.slots[i];
    result.occupancy[static_cast<size_t>(draws.slots[i])] += 1 / n;
    result.mean[i % num_pairs] += slot / n;
    squares[i % num_pairs] += slot * slot / n;
  }
  for (size_t j = 0; j < num_pairs; ++j)
    result.deviation[j] = std::sqrt((squares[j] - result.mean[j] * result.mean[j]) / n);
  return result;
}

struct SlotTable {
  int64_t seq_len, num_pairs, count;
  std::vector<double> occupancy;  // At slots 0, 1, 3, 7 and the last; empty: 1 everywhere.
  std::vector<double> mean;       // Means of pairs 0, K / 2, K - 1.
};

// The table was measured over 100,000 rows and rounded. Both errors are added to 5 deviations of
// this test.
TEST(Mqar, NativeSlotsFollowTheMeasuredTable) {
  constexpr double kTableRows = 100000;
  const SlotTable tables[] = {
      {48, 12, 20000, {}, {2.88, 5.69, 8.49}},
      {128, 16, 20000, {0.997, 0.956, 0.809, 0.569, 0.130}, {9.86, 15.71, 19.61}},
      {256, 64, 4000, {}, {12.65, 31.86, 51.74}},
      {512, 128, 2000, {}, {22.95, 64.20, 106.28}},
      {1024, 256, 1000, {}, {41.52, 128.66, 217.11}},
      {2048, 512, 500, {}, {76.48, 257.47, 441.18}}};
  for (const SlotTable& table : tables) {
    const MqarConfig config{.seq_len = table.seq_len, .num_pairs = table.num_pairs, .seed = 7};
    const SlotStatistics found = Statistics(config, DrawMqar(config, 0, table.count));
    const auto count = static_cast<double>(table.count);
    const size_t last = found.occupancy.size() - 1, num_pairs = found.mean.size();
    const size_t slots[] = {0, 1, 3, 7, last};
    for (size_t i = 0; i < table.occupancy.size(); ++i) {
      const double p = table.occupancy[i];
      EXPECT_NEAR(found.occupancy[slots[i]], p,
                  5 * std::sqrt(p * (1 - p) * (1 / count + 1 / kTableRows)) + 0.0005)
          << table.seq_len << ", slot " << slots[i];
    }
    if (table.occupancy.empty()) {
      for (const double occupancy : found.occupancy) EXPECT_NEAR(occupancy, 1, 1e-9);
    }
    const size_t pairs[] = {0, num_pairs / 2, num_pairs - 1};
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(found.mean[pairs[i]], table.mean[i],
                  5 * found.deviation[pairs[i]] * std::sqrt(1 + count / kTableRows) + 0.005)
          << table.seq_len << ", pair " << pairs[i];
    }
  }
}

TEST(Mqar, EqualWeightsFillSlotsEvenly) {
  const MqarConfig config{.seq_len = 128, .num_pairs = 16, .power = 1};
  constexpr int64_t kCount = 20000;
  const double share = 16.0 / 48;  // K / G
  for (const double occupancy : Statistics(config, DrawMqar(config, 0, kCount)).occupancy)
    EXPECT_NEAR(occupancy, share, 5 * std::sqrt(share * (1 - share) / kCount));
}

// A constant answer is right for one of the 4096 values.
TEST(Mqar, AConstantAnswerIsRightByChance) {
  const MqarConfig config{.seq_len = 256, .num_pairs = 64};
  const MqarDraws draws = DrawMqar(config, 0, 4000);
  const auto n = static_cast<double>(draws.values.size());
  for (const int32_t answer : {4096, 6000, 8191}) {
    const auto hits = static_cast<double>(std::ranges::count(draws.values, answer));
    EXPECT_NEAR(hits / n, 1.0 / 4096, 5 * std::sqrt(1 / 4096.0 / n)) << answer;
  }
}

TEST(Mqar, RefusesWhatCannotBeAndSaysWhatCan) {
  EXPECT_HL_ERROR(CheckMqar({.seq_len = 63, .num_pairs = 4}), ExitCode::kUsage, "seq_len 63",
                  "Use 64.");
  EXPECT_HL_ERROR(CheckMqar({.vocab_size = 64, .seq_len = 64, .num_pairs = 4}), ExitCode::kUsage,
                  "a vocabulary of 64", "Use at least 65 tokens.");
  EXPECT_HL_ERROR(CheckMqar({.seq_len = 64, .num_pairs = 17}), ExitCode::kUsage, "num_pairs 17",
                  "Use 1 to 16.");
  EXPECT_HL_ERROR(CheckMqar({.seq_len = 64, .num_pairs = 0}), ExitCode::kUsage, "num_pairs 0");
  EXPECT_HL_ERROR(CheckMqar({.num_pairs = (int64_t{1} << 62) + 1}), ExitCode::kUsage,
                  "num_pairs 4611686018427387905");
  EXPECT_HL_ERROR(CheckMqar({.power = 0}), ExitCode::kUsage, "power 0", "for example 0.01");
  for (const double power : {1000.0, 1e-323})
    EXPECT_HL_ERROR(CheckMqar({.seq_len = 128, .num_pairs = 16, .power = power}), ExitCode::kUsage,
                    "are not positive finite numbers in fp64", "for example 0.01");
  EXPECT_HL_ERROR(NumpyMqarDraws({.seed = uint64_t{1} << 32}, 1), ExitCode::kUsage, "32 bits",
                  "native");
}

}  // namespace
}  // namespace halflife::data
