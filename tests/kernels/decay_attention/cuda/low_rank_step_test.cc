// A step that computes its decay from two matrices has the bits of the separate operations:
// product, gate, step. The CPU's step equals it up to rounding.
#include "kernels/decay_attention/low_rank_step.h"

#include <limits>

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/linear/row_products_args.h"
#include "kernels/rows_support.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;

struct LowRankCase {
  int batch, heads, decay_heads, dim_k, dim_v, rank;
  float floor = -std::numeric_limits<float>::infinity();
};
// GLA's rank; a rank of one pack and the largest; shared decays; several blocks of V; and a floor.
constexpr LowRankCase kLowRankCases[] = {{1, 2, 2, 32, 64, 16},
                                         {3, 4, 2, 20, 70, 8},
                                         {8, 2, 1, 256, 130, 64},
                                         {2, 3, 3, 24, 40, 40, /*floor=*/-0.05f}};

// Everything that a step reads and writes.
struct LowRankProblem {
  explicit LowRankProblem(const LowRankCase& c_in)
      : c(c_in),
        width(c.decay_heads * c.dim_k),
        q(Random(int64_t{c.batch} * c.heads * c.dim_k, 1)),
        k(Random(int64_t{c.batch} * c.heads * c.dim_k, 2)),
        v(Random(int64_t{c.batch} * c.heads * c.dim_v, 3)),
        out(int64_t{c.batch} * c.heads * c.dim_v),
        hidden(Random(int64_t{c.batch} * c.rank, 4)),
        weight(Random(int64_t{width} * c.rank, 5)),
        bias(Random(width, 6)),
        state(Random(int64_t{c.batch} * c.heads * c.dim_k * c.dim_v, 7)) {}

  DecayAttentionStepArgs Args() {
    const auto view = [&](Array<Bf16>& x, int dim) {
      return TensorView{.data = x.data(),
                        .stride_b = int64_t{c.heads} * dim,
                        .stride_h = dim,
                        .dtype = DType::kBF16};
    };
    return {.batch = c.batch,
            .num_heads = c.heads,
            .num_q_heads = c.heads,
            .num_k_heads = c.heads,
            .num_v_heads = c.heads,
            .num_decay_heads = c.decay_heads,
            .head_dim_k = c.dim_k,
            .head_dim_v = c.dim_v,
            .decay_kind = DecayKind::kPerTokenChannel,
            .scale = 0.25,
            .q = view(q, c.dim_k),
            .k = view(k, c.dim_k),
            .v = view(v, c.dim_v),
            .out = view(out, c.dim_v),
            .state = state.data()};
  }
  LowRankDecay Decay() const {
    return {.hidden = hidden.data(),
            .hidden_stride = c.rank,
            .weight = weight.data(),
            .rank = c.rank,
            .form = {.bias = bias.data(), .scale = 1 / 16.0f, .floor = c.floor}};
  }

  LowRankCase c;
  int width;
  Array<Bf16> q, k, v, out, hidden, weight;
  Array<float> bias, state;
};

// The same by the kernels of the separate operations.
void RunSeparately(LowRankProblem& problem) {
  const LowRankCase& c = problem.c;
  Array<Bf16> logits(int64_t{c.batch} * problem.width);
  Array<float> log_decay(int64_t{c.batch} * problem.width);
  RowProductsArgs product;
  product.num_rows = c.batch, product.depth = c.rank, product.num_products = 1;
  product.x = problem.hidden.data(), product.x_stride = c.rank;
  product.products[0].weight = problem.weight.data();
  product.products[0].out = logits.data(), product.products[0].columns = problem.width;
  cuda::RowProducts(product, nullptr);
  cuda::DecayGateForward(DecayGateRows<Bf16>{.x = logits.data(),
                                             .log_decay = log_decay.data(),
                                             .form = problem.Decay().form,
                                             .num_rows = c.batch,
                                             .dim = problem.width},
                         nullptr);
  DecayAttentionStepArgs args = problem.Args();
  args.log_decay = {.data = log_decay.data(),
                    .stride_b = problem.width,
                    .stride_h = c.dim_k,
                    .dtype = DType::kF32};
  decay::LaunchStep<bf16>(args, nullptr);
}

TEST(LowRankStep, HasTheBitsOfTheSeparateOperations) {
  for (const LowRankCase& c : kLowRankCases) {
    SCOPED_TRACE(testing::Message() << c.batch << " rows, rank " << c.rank);
    LowRankProblem got(c), want(c), cpu(c);
    cuda::LowRankStep(got.Args(), got.Decay(), nullptr);
    RunSeparately(want);
    EXPECT_EQ(got.out.values(), want.out.values());
    EXPECT_EQ(got.state.values(), want.state.values());
    cpu::LowRankStep(cpu.Args(), cpu.Decay());
    // Both round the logits alike and evaluate the gate and the step in fp32.
    test::ExpectClose<float>("state", got.state.values(), cpu.state.values(), 1e-5);
    test::ExpectClose<Bf16>("out", got.out.values(), cpu.out.values(), 1e-5);
  }
}

TEST(LowRankStep, RefusesOtherForms) {
  LowRankProblem problem(kLowRankCases[0]);
  LowRankDecay decay = problem.Decay();
  decay.rank = kMaxDecayRank + 8;
  EXPECT_HL_ERROR(cuda::LowRankStep(problem.Args(), decay, nullptr), ExitCode::kInternal,
                  "a decay of rank 72", "at most 64");
  DecayAttentionStepArgs args = problem.Args();
  args.decay_kind = DecayKind::kPerToken;
  EXPECT_HL_ERROR(cuda::LowRankStep(args, problem.Decay(), nullptr), ExitCode::kInternal,
                  "a decay of two matrices", "Use bf16");
}

}  // namespace
}  // namespace halflife::kernels
