// The emulated CUDA kernel of cross entropy over rows of logits equals the definition in fp64.
#include <limits>

#include "kernels/cross_entropy/cross_entropy_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::ExpectClose;
using test::Random;
using test::Values;

struct Case {
  int64_t num_rows, vocab;
  double scale = 3;  // Factor on the logits.
  int shift = 0;     // Elements by which the logits are misaligned.
};

// One token, less than a pack, whole packs, odd ends, more than a pass of the largest block; peaked
// rows; the longest rows that threads hold in registers, and longer ones.
constexpr Case kCases[] = {{2, 1},        {5, 3},           {3, 128},       {3, 259},  {2, 1500},
                           {2, 5003, 3},  {3, 260, 40},     {3, 260, 3, 1}, {2, 8192}, {3, 32768},
                           {3, 32771, 3}, {3, 37000, 3, 1}, {3, 41000}};

struct Results {
  Array<float> loss, log_partition, logits;
};
// Returns the targets: every third row has none. The others are the first, the last or another
// token.
std::vector<int64_t> TargetsOf(const Case& c) {
  std::vector<int64_t> targets;
  for (int64_t row = 0; row < c.num_rows; ++row)
    targets.push_back(row % 3 == 2 ? -100 : row % 3 == 1 ? 0 : c.vocab - 1 - row / 3 % c.vocab);
  return targets;
}

Results Reduce(const Case& c, const Array<float>& logits, const std::vector<int64_t>& targets,
               float z_loss_weight, LogitGradient gradient) {
  Results r = {Array<float>(c.num_rows), Array<float>(c.num_rows), logits};
  cuda::ReduceRows({.logits = r.logits.data(),
                    .targets = targets.data(),
                    .loss = r.loss.data(),
                    .log_partition = r.log_partition.data(),
                    .num_rows = c.num_rows,
                    .vocab = c.vocab,
                    .z_loss_weight = z_loss_weight,
                    .gradient = gradient},
                   nullptr);
  return r;
}

struct Wanted {
  Values loss, log_partition, dlogits;
};
Wanted Definition(const Case& c, const Values& logits, const std::vector<int64_t>& targets,
                  double z_loss_weight) {
  Wanted want = {Values(c.num_rows), Values(c.num_rows), Values(logits.size())};
  for (int64_t row = 0; row < c.num_rows; ++row) {
    if (targets[row] < 0) continue;
    const int64_t begin = row * c.vocab;
    const double max = *std::max_element(logits.begin() + begin, logits.begin() + begin + c.vocab);
    double sum = 0;
    for (int64_t i = begin; i < begin + c.vocab; ++i) sum += std::exp(logits[i] - max);
    const double log_z = max + std::log(sum);
    want.log_partition[row] = log_z;
    want.loss[row] = log_z - logits[begin + targets[row]];
    for (int64_t i = begin; i < begin + c.vocab; ++i)
      want.dlogits[i] = (1 + 2 * z_loss_weight * log_z) * std::exp(logits[i] - log_z);
    want.dlogits[begin + targets[row]] -= 1;
  }
  return want;
}

// Sums of up to 8192 exponentials with errors of a few ulp each. Logits of up to 160 have errors of
// 2^-24 of themselves.
TEST(CrossEntropyKernel, EqualsTheDefinitionInFp64) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.num_rows << " x " << c.vocab << ", scale " << c.scale
                                    << ", shift " << c.shift);
    const Array<float> logits(Random(c.num_rows * c.vocab, 1, c.scale), c.shift);
    const std::vector<int64_t> targets = TargetsOf(c);
    for (const float z_loss_weight : {0.0f, 0.25f}) {
      const Wanted want = Definition(c, logits.values(), targets, z_loss_weight);
      const Results got = Reduce(c, logits, targets, z_loss_weight, LogitGradient::kFp32);
      ExpectClose<float>("loss", got.loss.values(), want.loss, 1e-6);
      ExpectClose<float>("log partition", got.log_partition.values(), want.log_partition, 1e-6);
      ExpectClose<float>("gradient", got.logits.values(), want.dlogits, 2e-6);
      const Results alone = Reduce(c, logits, targets, z_loss_weight, LogitGradient::kNone);
      EXPECT_EQ(alone.loss.values(), got.loss.values());
      EXPECT_EQ(alone.logits.values(), logits.values());
    }
  }
}

// A bf16 gradient is the fp32 gradient rounded, in the first half of the bytes of each row. Losses
// are the same in bits.
TEST(CrossEntropyKernel, Bf16GradientIsTheRoundedGradient) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.num_rows << " x " << c.vocab << ", shift " << c.shift);
    const Array<float> logits(Random(c.num_rows * c.vocab, 1, c.scale), c.shift);
    const std::vector<int64_t> targets = TargetsOf(c);
    const Results wide = Reduce(c, logits, targets, 0.25f, LogitGradient::kFp32),
                  narrow = Reduce(c, logits, targets, 0.25f, LogitGradient::kBf16);
    EXPECT_EQ(narrow.loss.values(), wide.loss.values());
    EXPECT_EQ(narrow.log_partition.values(), wide.log_partition.values());
    for (int64_t row = 0; row < c.num_rows; ++row) {
      const float* const want = wide.logits.data() + row * c.vocab;
      const auto* const got = reinterpret_cast<const Bf16*>(narrow.logits.data() + row * c.vocab);
      for (int64_t i = 0; i < c.vocab; ++i)
        ASSERT_EQ(got[i].bits, Narrow<Bf16>(want[i]).bits) << "row " << row << ", column " << i;
    }
  }
}

TEST(CrossEntropyKernel, TwoRunsGiveTheSameBits) {
  const Case c = {7, 1027};
  const Array<float> logits(Random(c.num_rows * c.vocab, 1, c.scale));
  const Results first = Reduce(c, logits, TargetsOf(c), 0.25f, LogitGradient::kFp32),
                second = Reduce(c, logits, TargetsOf(c), 0.25f, LogitGradient::kFp32);
  EXPECT_EQ(first.loss.values(), second.loss.values());
  EXPECT_EQ(first.logits.values(), second.logits.values());
}

// Masked logits are ignored at any index, also if a thread has no others.
TEST(CrossEntropyKernel, MinusInfinityIsAProbabilityOfZero) {
  const Case c = {1, 2048};
  Array<float> logits(c.num_rows * c.vocab);
  for (int64_t i = 0; i < c.vocab; ++i)
    logits.data()[i] = i < 2000 ? -std::numeric_limits<float>::infinity() : 0.0f;
  const Results got = Reduce(c, logits, {2040}, 0, LogitGradient::kFp32);
  EXPECT_NEAR(got.loss.values()[0], std::log(48.0), 1e-6);
  EXPECT_EQ(got.logits.values()[0], 0);
  EXPECT_NEAR(got.logits.values()[2001], 1 / 48.0, 1e-7);
}

// These errors must be visible, and neighbouring rows must not change.
TEST(CrossEntropyKernel, NanAndTargetsOutsideTheVocabularyGiveNan) {
  const Case c = {3, 300};
  Array<float> logits(Random(c.num_rows * c.vocab, 1));
  logits.data()[1 * c.vocab + 7] = std::numeric_limits<float>::quiet_NaN();
  const Results got = Reduce(c, logits, {4, 5, 300}, 0, LogitGradient::kFp32);
  const Values loss = got.loss.values(), dlogits = got.logits.values();
  EXPECT_TRUE(std::isfinite(loss[0]) && std::isnan(loss[1]) && std::isnan(loss[2]));
  for (int64_t i = 0; i < c.vocab; ++i) {
    EXPECT_TRUE(std::isfinite(dlogits[i]));
    EXPECT_TRUE(std::isnan(dlogits[2 * c.vocab + i]));
  }
}

TEST(CrossEntropyKernel, NoRowsWriteNothing) {
  const Values row(5, 7.0);
  Array<float> logits(row), loss(row), log_partition(row);
  const int64_t target = 2;
  cuda::ReduceRows({.logits = logits.data(),
                    .targets = &target,
                    .loss = loss.data(),
                    .log_partition = log_partition.data(),
                    .num_rows = 0,
                    .vocab = 5,
                    .gradient = LogitGradient::kFp32},
                   nullptr);
  EXPECT_EQ(logits.values(), row);
  EXPECT_EQ(loss.values(), row);
  EXPECT_EQ(log_partition.values(), row);
}

}  // namespace
}  // namespace halflife::kernels
