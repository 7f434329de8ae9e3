// The emulated CUDA kernels of the selective scan equal the oracle.
#include <memory>

#include "kernels/scans/selective_scan/selective_scan_args.h"
#include "kernels/scans/selective_scan_problem.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using cuda::ScanRoute;
using test::Array;
using test::ScanCase;
using test::Values;

// Returns b and c as columns of one matrix whose rows are `stride` apart, with c after b.
Values Columns(const ScanReferenceProblem& p, int64_t stride) {
  Values both(p.batch * p.seq_len * stride, NAN);
  for (int64_t token = 0; token < p.batch * p.seq_len; ++token)
    for (int64_t n = 0; n < p.states; ++n) {
      both[token * stride + n] = p.b[token * p.states + n];
      both[token * stride + p.states + n] = p.c[token * p.states + n];
    }
  return both;
}

template <typename T>
struct Arrays {
  explicit Arrays(const ScanReferenceProblem& p, int64_t stride)
      : x(p.x),
        delta(p.delta),
        b(stride > 0 ? Columns(p, stride) : p.b),
        c(p.c),
        dy(p.dy),
        delta_bias(p.delta_bias),
        skip(p.skip),
        a(p.a),
        initial(p.initial),
        dfinal(p.dfinal),
        starts(new bool[p.starts.size()]) {
    std::copy(p.starts.begin(), p.starts.end(), starts.get());
    shape = {.x = x.data(),
             .delta = delta.data(),
             .delta_bias = delta_bias.data(),
             .a = a.data(),
             .b = b.data(),
             .c = stride > 0 ? b.data() + p.states : c.data(),
             .skip = skip.data(),
             .starts = p.starts.empty() ? nullptr : starts.get(),
             .initial = p.initial.empty() ? nullptr : initial.data(),
             .batch = p.batch,
             .seq_len = p.seq_len,
             .channels = p.channels,
             .states = p.states,
             .token_stride = stride > 0 ? stride : p.states};
  }
  Array<T> x, delta, b, c, dy;
  Array<float> delta_bias, skip, a, initial, dfinal;
  std::unique_ptr<bool[]> starts;
  ScanShape<T, float> shape;
};

struct Options {
  ScanRoute route = ScanRoute::kAuto;
  int64_t stride = 0;  // of b and c as columns of one matrix; 0: dense
  bool negative_exp = false;
};

template <typename T>
test::ScanGot Run(const test::ScanProblem<T>& problem, const Options& options = {}) {
  const ScanReferenceProblem& p = problem.oracle;
  const int64_t stride = options.stride;
  Arrays<T> in(p, stride);
  in.shape.negative_exp = options.negative_exp;
  in.shape.route = options.route;
  const int64_t tokens = p.batch * p.seq_len, states = p.batch * p.channels * p.states;
  const cuda::ScanSizes sizes = {p.batch, p.seq_len, p.channels, p.states, options.route};
  Array<T> y(tokens * p.channels), dx(tokens * p.channels), ddelta(tokens * p.channels);
  Array<float> final(states), dinitial(states),
      kept(states * ScanTiles(p.seq_len, cuda::kScanTile)), dbias(p.channels), dskip(p.channels),
      da(p.channels * p.states);
  // db and dc have the layout of b and c.
  const int64_t of_token = stride > 0 ? stride : p.states;
  Array<T> db(Values(tokens * of_token + p.states, 7.0)), dc(Values(tokens * p.states, 7.0));
  Array<float> forward(Values(cuda::ScanForwardWorkspaceFloats(sizes), NAN)),
      backward(Values(cuda::ScanBackwardWorkspaceFloats(sizes), NAN));
  cuda::ScanForward(
      in.shape, ScanResults<T, float>{.y = y.data(), .final = final.data(), .kept = kept.data()},
      forward.data(), nullptr);
  cuda::ScanBackward(in.shape,
                     ScanGrads<T, float>{.kept = kept.data(),
                                         .dy = in.dy.data(),
                                         .dfinal = in.dfinal.data(),
                                         .dx = dx.data(),
                                         .ddelta = ddelta.data(),
                                         .dinitial = p.initial.empty() ? nullptr : dinitial.data(),
                                         .db = db.data(),
                                         .dc = stride > 0 ? db.data() + p.states : dc.data(),
                                         .token_stride = of_token},
                     {.da = da.data(), .dskip = dskip.data(), .ddelta_bias = dbias.data()},
                     backward.data(), nullptr);
  const Values both = db.values();
  for (int64_t i = 0; stride > 0 && i < tokens * stride; ++i)
    if (i % stride >= 2 * p.states) {
      EXPECT_EQ(both[i], 7.0) << "written outside the columns";
    }
  const auto dense = [&](int64_t first) {
    Values rows;
    for (int64_t i = 0; i < tokens * p.states; ++i)
      rows.push_back(both[i / p.states * of_token + first + i % p.states]);
    return rows;
  };
  return {y.values(),       final.values(), dx.values(),
          ddelta.values(),  dbias.values(), dskip.values(),
          da.values(),      dense(0),       stride > 0 ? dense(p.states) : dc.values(),
          dinitial.values()};
}

template <typename T>
using ScanKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(ScanKernel, test::Storages);

TYPED_TEST(ScanKernel, EqualsTheOracle) {
  for (const ScanCase& c : test::ScanCases()) {
    SCOPED_TRACE(Name(c));
    const test::ScanProblem<TypeParam> problem(c);
    test::ExpectOracle(problem, Run(problem));
  }
}

// Lengths around tiles of 16 tokens and parts of 4; channels around blocks of 128; a row of
// many tiles.
TYPED_TEST(ScanKernel, LanesEqualTheOracle) {
  std::vector<ScanCase> cases;
  for (const int64_t seq_len : {1, 3, 4, 5, 15, 16, 17, 33, 70})
    for (const bool rest : {false, true}) cases.push_back({seq_len, 5, 16, rest, rest});
  for (const int64_t channels : {1, 8, 127, 128, 131})
    cases.push_back({19, channels, 16, true, true});
  cases.push_back({300, 9, 16, true, false});
  for (const ScanCase& c : cases) {
    SCOPED_TRACE(Name(c));
    const test::ScanProblem<TypeParam> problem(c);
    test::ExpectOracle(problem, Run(problem, {.route = ScanRoute::kLanes}));
  }
}

TYPED_TEST(ScanKernel, LanesEqualTheOracleInLongRows) {
  const test::ScanProblem<TypeParam> problem({1040, 2, 16, true, true});
  test::ExpectOracle(problem, Run(problem, {.route = ScanRoute::kLanes}));
}

// A problem for each route.
struct RouteCase {
  ScanRoute route;
  ScanCase of;
};
std::vector<RouteCase> RouteCases(int64_t seq_len, int64_t channels) {
  return {{ScanRoute::kSegments, {seq_len, channels, 3, true, true}},
          {ScanRoute::kLanes, {seq_len, channels, 16, true, true}}};
}

TYPED_TEST(ScanKernel, ReadsAndWritesColumnsOfAMatrixInTheirPlace) {
  for (const auto& [route, c] : RouteCases(300, 5)) {
    SCOPED_TRACE(Name(c));
    const test::ScanProblem<TypeParam> problem(c);
    const test::ScanGot want = Run(problem, {.route = route}),
                        got = Run(problem, {.route = route, .stride = 2 * c.states + 3});
    EXPECT_EQ(got.y, want.y);
    EXPECT_EQ(got.db, want.db);
    EXPECT_EQ(got.dc, want.dc);
    EXPECT_EQ(got.da, want.da);
  }
}

// Takes p with a = -e^p instead of a. The roundings of the exponential change a and the gradient of
// p.
TYPED_TEST(ScanKernel, TakesWhatTheDecayIsAnExponentialOf) {
  for (const int64_t seq_len : {17, 300}) {
    for (const auto& [route, c] : RouteCases(seq_len, 5)) {
      SCOPED_TRACE(Name(c));
      test::ScanProblem<TypeParam> problem(c);
      Values& a = problem.oracle.a;
      for (double& decay : a) decay = static_cast<float>(std::log(-decay));
      test::ScanGot got = Run(problem, {.route = route, .negative_exp = true});
      for (size_t i = 0; i < a.size(); ++i) {
        a[i] = -std::exp(a[i]);
        got.da[i] /= a[i];
      }
      test::ExpectOracle(problem, got);
    }
  }
}

TYPED_TEST(ScanKernel, TwoRunsGiveTheSameBits) {
  for (const auto& [route, c] : RouteCases(300, 130)) {
    const test::ScanProblem<TypeParam> problem(c);
    const test::ScanGot first = Run(problem, {.route = route}),
                        second = Run(problem, {.route = route});
    EXPECT_EQ(first.y, second.y);
    EXPECT_EQ(first.ddelta, second.ddelta);
    EXPECT_EQ(first.da, second.da);
    EXPECT_EQ(first.db, second.db);
  }
}

// A NaN stays within its document, also across segments.
TYPED_TEST(ScanKernel, NansDoNotCrossADocumentsStart) {
  for (const auto& [route, c] : RouteCases(300, 5)) {
    SCOPED_TRACE(Name(c));
    for (const auto member : {&ScanReferenceProblem::x, &ScanReferenceProblem::delta}) {
      test::ScanProblem<TypeParam> problem(c);
      (problem.oracle.*member)[(c.seq_len + 100) * c.channels + 1] =
          NAN;  // Documents of row 1: 3, 4, 140.
      const Values y = Run(problem, {.route = route}).y;
      for (int64_t t = 4; t < c.seq_len; ++t)
        EXPECT_EQ(std::isnan(y[(c.seq_len + t) * c.channels + 1]), t >= 100 && t < 140) << t;
    }
  }
}

// The shapes of layers, and the edges of the rule.
TEST(ScanRoutes, StatesStayInRegistersIfTheirThreadsFillAGpu) {
  const auto route = [](int64_t batch, int64_t channels, int64_t states) {
    return cuda::ScanRouteOf({batch, 2048, channels, states});
  };
  EXPECT_EQ(route(8, 2048, 16), ScanRoute::kLanes);  // 24 layers of 1,024 channels
  EXPECT_EQ(route(8, 1536, 16), ScanRoute::kLanes);  // mamba_130m
  EXPECT_EQ(route(4, 2048, 16), ScanRoute::kLanes);
  EXPECT_EQ(route(3, 2048, 16), ScanRoute::kSegments);
  EXPECT_EQ(route(64, 2048, 12), ScanRoute::kSegments);
  EXPECT_EQ(cuda::ScanForwardWorkspaceFloats({8, 2048, 2048, 16}), 0);
}

TEST(ScanKernel, RefusesStatesBeyondItsMemory) {
  ScanShape<float, float> shape;
  for (const int64_t states : {int64_t{0}, kScanMaxStates + 1}) {
    shape.states = states;
    EXPECT_THROW(cuda::ScanForward(shape, {}, nullptr, nullptr), std::exception);
  }
}

TEST(ScanKernel, RefusesStatesThatLanesDoNotTake) {
  ScanShape<float, float> shape;
  shape.batch = shape.seq_len = shape.channels = 1;
  shape.states = 12;
  shape.route = ScanRoute::kLanes;
  EXPECT_HL_ERROR(cuda::ScanForward(shape, {}, nullptr, nullptr), ExitCode::kInternal,
                  "12 states in registers. Use 16, or");
}

}  // namespace
}  // namespace halflife::kernels
