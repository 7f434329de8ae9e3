// The emulated CUDA kernels of RWKV-4's time mixing equal the oracle.
#include <memory>

#include "kernels/scans/wkv4/wkv4_args.h"
#include "kernels/scans/wkv4_problem.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Values;
using test::WkvCase;

template <typename T>
struct Arrays {
  Arrays(const WkvCase& c, const test::WkvProblem<T>& p)
      : k(p.oracle.k),
        v(p.oracle.v),
        dout(p.oracle.dout),
        log_decay(p.oracle.log_decay),
        bonus(p.oracle.bonus),
        initial{Array<float>(p.p), Array<float>(p.q), Array<float>(p.o)},
        dfinal{Array<float>(p.dp), Array<float>(p.dq)},
        starts(new bool[p.oracle.starts.size()]) {
    std::copy(p.oracle.starts.begin(), p.oracle.starts.end(), starts.get());
    shape = {.k = k.data(),
             .v = v.data(),
             .log_decay = log_decay.data(),
             .bonus = bonus.data(),
             .starts = c.documents ? starts.get() : nullptr,
             .initial = {},
             .batch = test::kWkvBatch,
             .seq_len = c.seq_len,
             .dim = c.dim};
    if (c.initial) shape.initial = {initial[0].data(), initial[1].data(), initial[2].data()};
  }
  Array<T> k, v, dout;
  Array<float> log_decay, bonus, initial[3], dfinal[2];
  std::unique_ptr<bool[]> starts;
  WkvShape<T, float> shape;
};

template <typename T>
test::WkvGot Run(const WkvCase& c, const test::WkvProblem<T>& problem, bool negative_exp = false) {
  Arrays<T> in(c, problem);
  in.shape.negative_exp = negative_exp;
  const int64_t states = test::kWkvBatch * c.dim, tokens = states * c.seq_len;
  Array<T> out(tokens), dk(tokens), dv(tokens);
  Array<float> p(states), q(states), o(states), dp(states), dq(states),
      kept(states * 3 * WkvTiles(c.seq_len)), dlog_decay(c.dim), dbonus(c.dim),
      workspace(Values(cuda::WkvWorkspaceFloats(test::kWkvBatch, c.seq_len, c.dim), NAN));
  cuda::WkvForward(
      in.shape,
      WkvResults<T, float>{
          .out = out.data(), .final = {p.data(), q.data(), o.data()}, .kept = kept.data()},
      workspace.data(), nullptr);
  WkvGrads<T, float> grads = {.kept = kept.data(),
                              .dout = in.dout.data(),
                              .final = {nullptr, nullptr, o.data()},
                              .dfinal = {in.dfinal[0].data(), in.dfinal[1].data(), nullptr},
                              .dk = dk.data(),
                              .dv = dv.data(),
                              .dinitial = {}};
  if (c.initial) grads.dinitial = {dp.data(), dq.data(), nullptr};
  cuda::WkvBackward(in.shape, grads,
                    {.dlog_decay = dlog_decay.data(), .dbonus = dbonus.data(), .bonus_added = true},
                    workspace.data(), nullptr);
  return {out.values(), p.values(),          q.values(),      o.values(),  dk.values(),
          dv.values(),  dlog_decay.values(), dbonus.values(), dp.values(), dq.values()};
}

template <typename T>
using WkvKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(WkvKernel, test::Storages);

TYPED_TEST(WkvKernel, EqualsTheOracle) {
  for (const WkvCase& c : test::WkvCases()) {
    SCOPED_TRACE(Name(c));
    test::WkvProblem<TypeParam> problem(c);
    test::ExpectOracle(problem, Run(c, problem), c.initial, test::WkvTolerance(c));
  }
}

// Takes p with w = -e^p instead of w. The roundings of the exponential change w and the gradient of
// p.
TYPED_TEST(WkvKernel, TakesWhatTheDecayIsAnExponentialOf) {
  for (const int64_t seq_len : {17, 300}) {
    const WkvCase c = {seq_len, 7, true, true};
    test::WkvProblem<TypeParam> problem(c);
    for (double& w : problem.oracle.log_decay) w = std::log(-w);
    problem.oracle.log_decay = test::Rounded<float>(problem.oracle.log_decay);
    test::WkvGot got = Run(c, problem, /*negative_exp=*/true);
    for (size_t i = 0; i < got.dlog_decay.size(); ++i) {
      double& w = problem.oracle.log_decay[i];
      w = -std::exp(w);
      got.dlog_decay[i] /= w;
    }
    test::ExpectOracle(problem, got, c.initial, test::WkvTolerance(c));
  }
}

TYPED_TEST(WkvKernel, TwoRunsGiveTheSameBits) {
  const WkvCase c = {300, 7, true, true};
  const test::WkvProblem<TypeParam> problem(c);
  const test::WkvGot first = Run(c, problem), second = Run(c, problem);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.dk, second.dk);
  EXPECT_EQ(first.dlog_decay, second.dlog_decay);
}

// A NaN stays within its document, also across segments.
TYPED_TEST(WkvKernel, NansDoNotCrossADocumentsStart) {
  const WkvCase c = {300, 7, true};
  test::WkvProblem<TypeParam> problem(c);
  problem.oracle.k[(c.seq_len + 100) * c.dim] = NAN;  // Row 1 has document starts at 3, 4 and 140.
  const Values out = Run(c, problem).out;
  for (int64_t t = 4; t < c.seq_len; ++t)
    EXPECT_EQ(std::isnan(out[(c.seq_len + t) * c.dim]), t >= 100 && t < 140) << t;
}

TEST(WkvSegments, CoverTheRowsInWholeTiles) {
  for (const int64_t seq_len : {0, 1, 127, 128, 129, 2048, 100000}) {
    const cuda::WkvSegments segments = cuda::WkvSegmentsOf(2, seq_len, 1024);
    EXPECT_EQ(segments.tokens % kWkvTokensPerState, 0);
    EXPECT_GE(segments.count * segments.tokens, seq_len);
    EXPECT_LT((segments.count - 1) * segments.tokens, std::max<int64_t>(1, seq_len));
  }
  EXPECT_EQ(cuda::WkvSegmentsOf(256, 4096, 1024).count, 1);
}

}  // namespace
}  // namespace halflife::kernels
