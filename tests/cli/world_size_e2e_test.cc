// The same recipe with 1, 2 and 4 ranks, and the same run twice.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/concat.h"
#include "support/program_test.h"

namespace halflife::test {
namespace {

class WorldSize : public ProgramTest {};

// Micro-batches and ranks are summed by one tree, so with equal micro-batch sizes no bit may
// differ.
TEST_F(WorldSize, FiftyStepsAreBitwiseEqualAtOneTwoAndFourRanks) {
  const std::vector<std::string> set = {"train.steps=50", "train.log_samples=true"};
  for (const int ranks : {1, 2, 4}) {
    ExpectExit(fixture->Run({.run = Concat("w", ranks), .ranks = ranks, .set = set}), 0);
  }
  const auto one = fixture->Metrics("w1", "loss");
  ASSERT_EQ(one.size(), 50u);
  for (const std::string run : {"w2", "w4"}) {
    const auto other = fixture->Metrics(run, "loss");
    ASSERT_EQ(other.size(), 50u);
    for (size_t i = 0; i < 50; ++i) EXPECT_EQ(one[i]["loss"], other[i]["loss"]) << run << " " << i;
    ExpectExit(Halflife({"ckpt", "diff", Path("w1"), Path(run), "--bitwise"}), 0);
  }
  // The same samples with the same tokens in every step.
  std::ifstream a(fixture->path("w1") / "samples.jsonl"), b(fixture->path("w4") / "samples.jsonl");
  for (std::string line_a, line_b; std::getline(a, line_a);) {
    ASSERT_TRUE(std::getline(b, line_b));
    EXPECT_EQ(line_a, line_b);
  }
}

TEST_F(WorldSize, LossFalls) {
  ExpectExit(fixture->Run({.run = "falls", .set = {"train.steps=60", "ckpt.every=0"}}), 0);
  const auto val = fixture->Metrics("falls", "val_loss");
  ASSERT_GE(val.size(), 2u);
  EXPECT_NEAR(val.front()["val_loss"], std::log(259.0),
              0.1);  // Untrained: uniform over the vocabulary.
  EXPECT_LT(val.back()["val_loss"], 0.7 * val.front()["val_loss"].get<double>());
}

TEST_F(WorldSize, TheSameRunTwiceIsBitwiseEqual) {
  for (const std::string run : {"first", "second"}) {
    ExpectExit(fixture->Run({.run = run, .ranks = 2, .set = {"ckpt.every=0"}}), 0);
  }
  ExpectExit(Halflife({"ckpt", "diff", Path("first"), Path("second"), "--bitwise"}), 0);
  ExpectExit(fixture->Run({.run = "third", .ranks = 2, .set = {"train.seed=8", "ckpt.every=0"}}),
             0);
  ExpectExit(Halflife({"ckpt", "diff", Path("first"), Path("third"), "--bitwise"}), 1);
}

TEST_F(WorldSize, Bf16TrainsAndStaysNearFp32) {
  for (const std::string precision : {"fp32", "bf16"}) {
    ExpectExit(
        fixture->Run({.run = precision, .set = {"train.precision=" + precision, "ckpt.every=0"}}),
        0);
  }
  const double fp32 = fixture->Metrics("fp32", "loss").back()["loss"];
  const double bf16 = fixture->Metrics("bf16", "loss").back()["loss"];
  EXPECT_NEAR(bf16 / fp32, 1, 0.02);  // 8 bits of mantissa, 20 steps.
}

}  // namespace
}  // namespace halflife::test
