// The emulated products of a few rows have the bits of the CPU loop and equal fp64 sums. Their bits
// depend neither on the other rows nor on the other weights of the launch, and a fused norm or
// SwiGLU has the bits of its own kernel.
#include <cmath>
#include <limits>

#include "kernels/linear/row_products_args.h"
#include "kernels/rows/rms_norm_args.h"
#include "kernels/rows/swiglu_args.h"
#include "kernels/rows_support.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr float kEps = 1e-5f;

// One weight of a launch.
struct WeightCase {
  int columns = 0;
  bool wide = false, pair = false;
};

// Rows, weights and everything else that a launch can read.
struct RowProductsProblem {
  RowProductsProblem(int depth_in, std::vector<WeightCase> cases_in)
      : depth(depth_in),
        cases(std::move(cases_in)),
        x(Random(int64_t{kMaxProductRows} * depth, 1)),
        branch(Random(int64_t{kMaxProductRows} * depth, 2)),
        norm_weight(Random(depth, 3)) {
    for (const WeightCase& c : cases) {
      const double scale = 1 / std::sqrt(depth);
      weights.emplace_back(Random(int64_t{c.columns} * depth, 10 + weights.size(), scale));
      ups.emplace_back(Random(int64_t{c.columns} * depth, 20 + ups.size(), scale));
    }
  }

  int depth;
  std::vector<WeightCase> cases;
  Array<Bf16> x, branch;  // [kMaxProductRows, depth]
  Array<float> norm_weight;
  std::vector<Array<Bf16>> weights, ups;
};

void RunEmulated(const RowProductsArgs& args) { cuda::RowProducts(args, nullptr); }

struct LaunchForm {
  int first_row = 0, num_rows = kMaxProductRows;
  bool norm = false, branch = false;
  int only = -1;  // Number of the only weight; -1: all.
};
struct RowProductsResult {
  std::vector<Values> outs;  // [weight], [rows, columns]
  Values sum, normed;
};

RowProductsResult Multiply(const RowProductsProblem& problem, const LaunchForm& form,
                           void (*run)(const RowProductsArgs&) = RunEmulated) {
  const int64_t begin = int64_t{form.first_row} * problem.depth;
  const int64_t count = int64_t{form.num_rows} * problem.depth;
  Array<Bf16> sum(count), normed(count);
  RowProductsArgs args;
  args.num_rows = form.num_rows, args.depth = problem.depth;
  args.x = problem.x.data() + begin, args.x_stride = problem.depth;
  if (form.norm) {
    args.norm_weight = problem.norm_weight.data(), args.norm_eps = kEps;
    args.normed = normed.data();
  }
  if (form.branch) args.branch = problem.branch.data() + begin, args.sum = sum.data();
  std::vector<Array<float>> wide;
  std::vector<Array<Bf16>> narrow;
  for (size_t i = 0; i < problem.cases.size(); ++i) {
    const WeightCase& c = problem.cases[i];
    const int64_t elements = int64_t{form.num_rows} * c.columns;
    wide.emplace_back(elements), narrow.emplace_back(elements);
    if (form.only >= 0 && form.only != static_cast<int>(i)) continue;
    RowProduct& product = args.products[args.num_products++];
    product.weight = problem.weights[i].data(), product.columns = c.columns;
    if (c.pair) product.up = problem.ups[i].data();
    product.wide = c.wide;
    product.out = c.wide ? static_cast<void*>(wide[i].data()) : narrow[i].data();
  }
  run(args);
  RowProductsResult result = {.outs = {}, .sum = sum.values(), .normed = normed.values()};
  for (size_t i = 0; i < problem.cases.size(); ++i)
    result.outs.push_back(problem.cases[i].wide ? wide[i].values() : narrow[i].values());
  return result;
}

// a b^T for a [rows, depth] and b [columns, depth].
Values Product(const Values& a, const Values& b, int depth) {
  const size_t rows = a.size() / depth, columns = b.size() / depth;
  Values out(rows * columns);
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      for (int k = 0; k < depth; ++k) out[r * columns + c] += a[r * depth + k] * b[c * depth + k];
  return out;
}

// Less than a step of a warp; a multiple of it; more than the steps that are requested ahead;
// several slices; and weights whose columns do not fill their last group.
const RowProductsProblem kProblems[] = {{8, {{1}, {7, /*wide=*/true}}},
                                        {16, {{33}}},
                                        {264, {{5}, {3}, {1}, {2}, {9}, {4}, {6}, {10}}},
                                        {1024, {{40, /*wide=*/true}, {6}}},
                                        {4104, {{5}}},
                                        {8200, {{3, /*wide=*/true}}}};

TEST(RowProducts, HaveTheBitsOfTheCpuAndEqualSumsInFp64) {
  for (const RowProductsProblem& problem : kProblems)
    for (int rows = 1; rows <= kMaxProductRows; ++rows) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << problem.depth);
      const RowProductsResult got = Multiply(problem, {.num_rows = rows});
      EXPECT_EQ(got.outs, Multiply(problem, {.num_rows = rows}, cpu::RowProducts).outs);
      Values x = problem.x.values();
      x.resize(int64_t{rows} * problem.depth);
      for (size_t i = 0; i < problem.cases.size(); ++i) {
        const Values want = Product(x, problem.weights[i].values(), problem.depth);
        // A lane adds depth / 256 packs in order, and the lanes' sums have 5 more steps.
        problem.cases[i].wide ? test::ExpectClose<float>("out", got.outs[i], want, 2e-6)
                              : test::ExpectClose<Bf16>("out", got.outs[i], want, 2e-6);
      }
    }
}

TEST(RowProducts, BitsDependNeitherOnOtherRowsNorOnOtherWeights) {
  for (const RowProductsProblem& problem : kProblems)
    for (const bool norm : {false, true}) {
      if (norm && problem.depth > kMaxNormedDepth) continue;
      const RowProductsResult all = Multiply(problem, {.norm = norm, .branch = norm});
      for (const auto& [first, rows] : {std::pair{0, 1}, {5, 1}, {2, 2}, {1, 3}, {4, 4}, {3, 5}}) {
        SCOPED_TRACE(testing::Message()
                     << rows << " rows of " << problem.depth << " from " << first);
        for (size_t i = 0; i < problem.cases.size(); ++i) {
          const RowProductsResult some = Multiply(problem, {.first_row = first,
                                                            .num_rows = rows,
                                                            .norm = norm,
                                                            .branch = norm,
                                                            .only = static_cast<int>(i)});
          const auto begin = all.outs[i].begin() + int64_t{first} * problem.cases[i].columns;
          EXPECT_EQ(some.outs[i], Values(begin, begin + int64_t{rows} * problem.cases[i].columns));
        }
      }
    }
}

// The norm of heads with a gate, against NormForward followed by products without a norm.
TEST(RowProducts, GatedNormOfHeadsHasTheBitsOfItsKernel) {
  struct Heads {
    int count, width;
  };
  for (const auto& [count, width] : {Heads{4, 256}, {3, 8}, {64, 64}, {2, 520}, {1, 48}})
    for (const NormGate kind : {NormGate::kSilu, NormGate::kSigmoid}) {
      const int depth = count * width, stride = depth + 16;
      SCOPED_TRACE(testing::Message() << count << " heads of " << width);
      RowProductsProblem problem(depth, {{5}});
      const Array<Bf16> gate(Random(int64_t{kMaxProductRows} * stride, 5));
      for (const int rows : {1, 3, 8}) {
        RowProductsArgs args;
        args.num_rows = rows, args.depth = depth, args.num_products = 1;
        args.x = problem.x.data(), args.x_stride = depth;
        args.norm_weight = problem.norm_weight.data(), args.norm_eps = kEps;
        args.norm_groups = count, args.gate_kind = kind;
        args.gate = gate.data(), args.gate_stride = stride;
        Array<Bf16> got(rows * 5);
        args.products[0].weight = problem.weights[0].data();
        args.products[0].columns = 5, args.products[0].out = got.data();
        cuda::RowProducts(args, nullptr);

        RowProductsProblem separate = problem;
        Array<float> inverse_rms(int64_t{rows} * count);
        cuda::NormForward(NormRows<Bf16>{.x = problem.x.data(),
                                         .gate = gate.data(),
                                         .gate_place = {count, stride},
                                         .gate_kind = kind,
                                         .weight = problem.norm_weight.data(),
                                         .out = separate.x.data(),
                                         .inverse_rms = inverse_rms.data(),
                                         .num_rows = int64_t{rows} * count,
                                         .dim = width,
                                         .eps = kEps},
                          nullptr);
        EXPECT_EQ(got.values(), Multiply(separate, {.num_rows = rows}).outs[0]);
      }
    }
}

// The norm with and without a branch, against NormForward followed by products without a norm.
TEST(RowProducts, NormHasTheBitsOfItsKernel) {
  for (const int depth : {8, 40, 256, 264, 1024, 4096})
    for (const bool branch : {false, true}) {
      SCOPED_TRACE(testing::Message() << depth << " channels, branch: " << branch);
      const RowProductsProblem problem(depth, {{5, /*wide=*/true}, {4}});
      for (const int rows : {1, 3, 8}) {
        const RowProductsResult got =
            Multiply(problem, {.num_rows = rows, .norm = true, .branch = branch});
        RowProductsProblem separate = problem;
        const int64_t count = int64_t{rows} * depth;
        Array<Bf16> sum(count);
        Array<float> inverse_rms(rows);
        cuda::NormForward(NormRows<Bf16>{.x = problem.x.data(),
                                         .residual = branch ? problem.branch.data() : nullptr,
                                         .weight = problem.norm_weight.data(),
                                         .sum = branch ? sum.data() : nullptr,
                                         .out = separate.x.data(),
                                         .inverse_rms = inverse_rms.data(),
                                         .num_rows = rows,
                                         .dim = depth,
                                         .eps = kEps},
                          nullptr);
        EXPECT_EQ(got.outs, Multiply(separate, {.num_rows = rows}).outs);
        EXPECT_EQ(got.sum, sum.values());
        const Values normed = separate.x.values();
        EXPECT_EQ(got.normed, Values(normed.begin(), normed.begin() + count));
      }
    }
}

TEST(RowProducts, SwiGluHasTheBitsOfItsKernel) {
  for (const int columns : {1, 2, 7, 24})
    for (const int rows : {1, 2, 3, 8}) {
      RowProductsProblem problem(64, {{columns}, {columns}, {columns, /*wide=*/false, true}, {3}});
      problem.weights[2] = problem.weights[0];
      problem.ups[2] = problem.weights[1];
      const RowProductsResult got = Multiply(problem, {.num_rows = rows});
      const Array<Bf16> gate(got.outs[0]), up(got.outs[1]);
      Array<Bf16> want(int64_t{rows} * columns);
      cuda::SwiGluForward(SwiGluArgs<Bf16>{.gate = gate.data(),
                                           .up = up.data(),
                                           .out = want.data(),
                                           .count = int64_t{rows} * columns},
                          nullptr);
      EXPECT_EQ(got.outs[2], want.values()) << rows << " rows, " << columns << " columns";
    }
}

TEST(RowProducts, NaNStaysInItsRowOrColumn) {
  for (const bool norm : {false, true}) {
    RowProductsProblem problem(264, {{9}});
    problem.x.data()[3 * 264 + 263] = Narrow<Bf16>(static_cast<float>(kNaN));
    problem.weights[0].data()[8 * 264] = Narrow<Bf16>(static_cast<float>(kNaN));
    const RowProductsResult got = Multiply(problem, {.num_rows = 5, .norm = norm});
    for (int row = 0; row < 5; ++row)
      for (int c = 0; c < 9; ++c)
        EXPECT_EQ(std::isnan(got.outs[0][row * 9 + c]), row == 3 || c == 8) << row << ", " << c;
  }
}

// Rows that are columns of a wider matrix.
TEST(RowProducts, ReadsRowsAtAStride) {
  RowProductsProblem problem(48, {{6}});
  problem.x = Array<Bf16>(Random(int64_t{kMaxProductRows} * 64, 4));
  RowProductsProblem dense = problem;
  for (int row = 0; row < 4; ++row)
    std::copy_n(problem.x.data() + row * 64, 48, dense.x.data() + row * 48);
  Array<Bf16> out(4 * 6);
  RowProductsArgs args;
  args.num_rows = 4, args.depth = 48, args.x = problem.x.data(), args.x_stride = 64;
  args.num_products = 1;
  args.products[0].weight = problem.weights[0].data();
  args.products[0].out = out.data(), args.products[0].columns = 6;
  cuda::RowProducts(args, nullptr);
  EXPECT_EQ(out.values(), Multiply(dense, {.num_rows = 4}).outs[0]);
}

TEST(RowProducts, RefusesWhatItCannotMultiply) {
  RowProductsArgs args;
  args.num_rows = 9, args.depth = 64, args.x_stride = 64, args.num_products = 1;
  EXPECT_HL_ERROR(cuda::RowProducts(args, nullptr), ExitCode::kInternal, "9 rows of 64 channels",
                  "Use 1 to 8 rows");
  args.num_rows = 1, args.depth = args.x_stride = kMaxNormedDepth + 8;
  const float weight = 1;
  Bf16 normed;
  args.norm_weight = &weight, args.normed = &normed;
  EXPECT_HL_ERROR(cuda::RowProducts(args, nullptr), ExitCode::kInternal, "rows of 4104 channels",
                  "at most 4096");
}

}  // namespace
}  // namespace halflife::kernels
