// Rows of thousands of tokens: both routes, with wgmma and with mma.sync, equal the oracle
// within the roundings of bf16. The gradient of a constant decay, a sum over all tokens, loses no
// digits.
//
// Bounds. A bf16 has 8 significant bits, so a rounding's error is uniform within 2^-8 for values in
// [1, 2). If the logarithms of the values are uniform, its root mean square (RMS) relative to the
// value is kRounding = 2^-8 sqrt((1 - 2^-2) / (6 ln 2)). The roundings of a result are independent,
// so n of them give sqrt(n) kRounding:
//
//   final_state, dinitial_state   2  the operand that is multiplied by decays; a checkpoint
//   out, dq, dk, dv               4  S or R, with the two roundings of its own; the result
//   gradients of decays           5  S and R, of which one has a checkpoint; they stay fp32
//
// The fifth part on top is for values whose logarithms are not uniform.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

const double kRounding = std::ldexp(std::sqrt(0.75 / (6 * std::log(2.0))), -8);

double RoundingBound(const std::string& name) {
  int roundings = 4;
  if (name == "final_state" || name == "dinitial_state") roundings = 2;
  if (name == "dlog_decay" || name == "dlambda") roundings = 5;
  return 1.2 * kRounding * std::sqrt(roundings);
}

// Returns the magnitude of each head's gradient of a constant decay without the cancellation
// between the columns of V: the root of the sum of squares of the columns' own gradients, each of
// which has independent signs. The error of a sum of rounded terms is proportional to this
// magnitude, not to the sum, which may be any amount smaller.
std::vector<double> SizesOfConstantGradients(const RandomProblem& problem) {
  const ProblemConfig& c = problem.config;
  std::vector<double> sizes;
  for (int head = 0; head < c.H; ++head) {
    double squares = 0;
    for (int n = 0; n < c.num_sequences(); ++n) {
      const DecayReferenceProblem whole = HeadProblem(problem, n, head);
      for (int column = 0; column < c.V; ++column) {
        DecayReferenceProblem one = whole;
        one.head_dim_v = 1;
        for (Values DecayReferenceProblem::*of :
             {&DecayReferenceProblem::v, &DecayReferenceProblem::dout,
              &DecayReferenceProblem::initial_state, &DecayReferenceProblem::dfinal_state}) {
          (one.*of).clear();
          for (size_t i = column; i < (whole.*of).size(); i += c.V)
            (one.*of).push_back((whole.*of)[i]);
        }
        double sum = 0;
        for (const double x : DecayReference(one).dlog_decay) sum += x;
        squares += sum * sum;
      }
    }
    sizes.push_back(std::sqrt(squares));
  }
  return sizes;
}

// Returns the largest error of a constant decay's gradient, relative to its size without
// cancellation.
double ErrorOfConstantGradient(const Problem& problem) {
  const Values got = problem.Collect(/*backward=*/true).at("dlambda"),
               want = Reference(problem.values()).at("dlambda");
  const std::vector<double> sizes = SizesOfConstantGradients(problem.values());
  double largest = 0;
  for (size_t i = 0; i < sizes.size(); ++i)  // NaN stays
    largest = !(std::abs(got[i] - want[i]) <= largest * sizes[i])
                  ? std::abs(got[i] - want[i]) / sizes[i]
                  : largest;
  return largest;
}

void ExpectWithinRoundings(const ProblemShape& shape) {
  SCOPED_TRACE(shape.Name());
  Problem problem(shape);
  if (IsPerChannel(shape.kind)) {
    ASSERT_EQ(problem.Plan().forward_warpgroups, shape.warpgroups);
  }
  ASSERT_EQ(problem.Plan().backward_warpgroups, shape.warpgroups);
  problem.Forward(/*with_checkpoints=*/true);
  problem.Backward();
  for (const auto& [name, error] : problem.Compare(/*backward=*/true).errors) {
    if (name == "dlambda") continue;
    EXPECT_LE(error, RoundingBound(name)) << name;
  }
  // One number per head and not an RMS over many. It stays within the bound because pairs of tokens
  // in one chunk, a large part of it, are exact: the error of 40 rows was below 2.1e-3.
  if (shape.kind == DecayKind::kPerHead) {
    EXPECT_LE(ErrorOfConstantGradient(problem), RoundingBound("dlambda"));
  }
}
void ExpectBothRoutesWithinRoundings(ProblemShape shape) {
  for (const bool warpgroups : {false, true}) {
    shape.warpgroups = warpgroups;
    ExpectWithinRoundings(shape);
  }
}

constexpr DecayKind kKinds[] = {DecayKind::kPerHead, DecayKind::kPerToken,
                                DecayKind::kPerTokenChannel};

// The longest rows run nightly only: in the order `forward` (cmake/Emulation.cmake).
bool IsNightly() {
  const char* const order = std::getenv("HL_EMU_ORDER");
  return order == nullptr || std::string_view(order) == "forward";
}

TEST(CudaLongRows, Tokens2048) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : kKinds)
    ExpectBothRoutesWithinRoundings(
        {.seq_len = 2048, .heads = 1, .dim_k = 128, .dim_v = 128, .kind = kind});
}

TEST(CudaLongRows, Tokens2048OfWideValues) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  ExpectBothRoutesWithinRoundings({.seq_len = 2048, .heads = 1, .dim_k = 128, .dim_v = 256});
}

// 65 chunks and more: each document also ends in a short one.
TEST(CudaLongRows, Tokens4160WithDocuments) {
  if (kSanitized || !IsNightly()) GTEST_SKIP() << "runs nightly, without a sanitizer";
  for (const DecayKind kind : kKinds)
    for (const bool documents : {false, true}) {
      ProblemShape shape = {.seq_len = 4150, .heads = 1, .dim_k = 128, .dim_v = 128, .kind = kind};
      if (documents) shape.seq_len = 4160, shape.document_starts = {1000, 1024, 3000, 4159};
      ExpectBothRoutesWithinRoundings(shape);
    }
}

// Decays near 1: the state holds the whole row.
TEST(CudaLongRows, DecaysNearOne) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  ExpectBothRoutesWithinRoundings(
      {.seq_len = 2048, .heads = 1, .kind = DecayKind::kPerHead, .strength = Strength::kNearOne});
}

TEST(CudaLongRows, BatchTilesOfFiveRowsChangeNoBit) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  for (const bool warpgroups : {false, true}) {
    ProblemShape shape = {.batch = 5,
                          .seq_len = 700,
                          .heads = 1,
                          .kind = warpgroups ? DecayKind::kPerHead : DecayKind::kPerToken,
                          .warpgroups = warpgroups};
    std::vector<Result> results;
    for (const int batch_tiles : {1, 2, 3}) {
      shape.batch_tiles = batch_tiles;
      Problem problem(shape);
      EXPECT_EQ(problem.Plan().backward_batch_tiles, batch_tiles);
      problem.Forward(/*with_checkpoints=*/true);
      problem.Backward();
      results.push_back(problem.Collect(/*backward=*/true));
    }
    ExpectSameBits(results[1], results[0]);
    ExpectSameBits(results[2], results[0]);
    ExpectWithinRoundings(shape);
  }
}

// With operands of -1, 0 and 1 and decays of 1, the states are integers below 256 and multiples of
// 1/8, which bf16 represents exactly. What is left is the error of the sums in fp32. Each has at
// most 2^6 sequential additions (chunks, or tokens of a chunk), with relative errors of 2^-24.
TEST(CudaLongRows, SumsOfAConstantDecayLoseNoDigits) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerHeadChannel})
    for (const bool warpgroups : {false, true}) {
      ProblemShape shape = {.seq_len = 2048,
                            .heads = 1,
                            .kind = kind,
                            .strength = Strength::kOne,
                            .states = false,
                            .ternary = true,
                            .warpgroups = warpgroups};
      for (shape.seed = 1; shape.seed <= 3; ++shape.seed) {
        SCOPED_TRACE(shape.Name());
        Problem problem(shape);
        problem.Forward(/*with_checkpoints=*/true);
        problem.Backward();
        const Problem::Report report = problem.Compare(/*backward=*/true);
        ASSERT_EQ(report["final_state"], 0) << "the operands must be exact";
        if (kind == DecayKind::kPerHead) {
          EXPECT_LE(ErrorOfConstantGradient(problem), std::ldexp(std::sqrt(64.0), -24));
        } else {
          EXPECT_LE(report["dlambda"], std::ldexp(std::sqrt(64.0), -24));
        }
      }
    }
}

}  // namespace
}  // namespace halflife::kernels::test
