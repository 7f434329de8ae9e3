// The CUDA kernels of the selective scan, emulated, against the oracle.
#include <memory>

#include "kernels/selective_scan/args.h"
#include "kernels/selective_scan/problem.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::ScanCase;
using test::Values;

template <typename T>
struct Arrays {
  explicit Arrays(const ScanReferenceProblem& p)
      : x(p.x),
        delta(p.delta),
        b(p.b),
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
             .c = c.data(),
             .skip = skip.data(),
             .starts = p.starts.empty() ? nullptr : starts.get(),
             .initial = p.initial.empty() ? nullptr : initial.data(),
             .batch = p.batch,
             .seq_len = p.seq_len,
             .channels = p.channels,
             .states = p.states};
  }
  Array<T> x, delta, b, c, dy;
  Array<float> delta_bias, skip, a, initial, dfinal;
  std::unique_ptr<bool[]> starts;
  ScanShape<T, float> shape;
};

// [N, I] to [I, N].
Values Transposed(const Values& from, int64_t rows) {
  const auto columns = static_cast<int64_t>(from.size()) / rows;
  Values to(from.size());
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t i = 0; i < columns; ++i) to[i * rows + n] = from[n * columns + i];
  return to;
}

template <typename T>
test::ScanGot Run(const test::ScanProblem<T>& problem) {
  const ScanReferenceProblem& p = problem.oracle;
  const Arrays<T> in(p);
  const int64_t tokens = p.batch * p.seq_len, states = p.batch * p.channels * p.states;
  const cuda::ScanSizes sizes = {p.batch, p.seq_len, p.channels, p.states};
  Array<T> y(tokens * p.channels), dx(tokens * p.channels), ddelta(tokens * p.channels);
  Array<float> final(states), dinitial(states),
      kept(states * ScanTiles(p.seq_len, cuda::kScanTile)), dbias(p.channels), dskip(p.channels),
      da(p.channels * p.states), db(tokens * p.states), dc(tokens * p.states);
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
                                         .dinitial = p.initial.empty() ? nullptr : dinitial.data()},
                     {.da = da.data(),
                      .dskip = dskip.data(),
                      .ddelta_bias = dbias.data(),
                      .db = db.data(),
                      .dc = dc.data()},
                     backward.data(), nullptr);
  return {y.values(),
          final.values(),
          dx.values(),
          ddelta.values(),
          dbias.values(),
          dskip.values(),
          Transposed(da.values(), p.states),
          db.values(),
          dc.values(),
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

TYPED_TEST(ScanKernel, TwoRunsGiveTheSameBits) {
  const test::ScanProblem<TypeParam> problem({300, 130, 3, true, true});
  const test::ScanGot first = Run(problem), second = Run(problem);
  EXPECT_EQ(first.y, second.y);
  EXPECT_EQ(first.ddelta, second.ddelta);
  EXPECT_EQ(first.da, second.da);
  EXPECT_EQ(first.db, second.db);
}

// A NaN stays within its document, also where a segment lies between.
TYPED_TEST(ScanKernel, NansDoNotCrossADocumentsStart) {
  const ScanCase c = {300, 5, 3, true};
  for (const auto member : {&ScanReferenceProblem::x, &ScanReferenceProblem::delta}) {
    test::ScanProblem<TypeParam> problem(c);
    (problem.oracle.*member)[(c.seq_len + 100) * c.channels + 1] =
        NAN;  // documents of row 1: 3, 4, 140
    const Values y = Run(problem).y;
    for (int64_t t = 4; t < c.seq_len; ++t)
      EXPECT_EQ(std::isnan(y[(c.seq_len + t) * c.channels + 1]), t >= 100 && t < 140) << t;
  }
}

TEST(ScanKernel, RefusesStatesBeyondItsMemory) {
  ScanShape<float, float> shape;
  for (const int64_t states : {int64_t{0}, kScanMaxStates + 1}) {
    shape.states = states;
    EXPECT_THROW(cuda::ScanForward(shape, {}, nullptr, nullptr), std::exception);
  }
}

}  // namespace
}  // namespace halflife::kernels
