// The emulated CUDA kernels of gated products equal the formula in fp64.
#include <limits>

#include "kernels/rows/swiglu_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

template <typename T>
using SwiGluKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(SwiGluKernel, test::Storages);

template <typename T>
struct Results {
  Array<T> out, dgate, dup;
};
template <typename T>
Results<T> Run(const Array<T>& gate, const Array<T>& up, const Array<T>& dout, int64_t count,
               int shift, GateMap map = GateMap::kSilu) {
  Results<T> r = {Array<T>(count, shift), Array<T>(count, shift), Array<T>(count, shift)};
  cuda::SwiGluForward(
      SwiGluArgs<T>{
          .gate = gate.data(), .up = up.data(), .out = r.out.data(), .count = count, .map = map},
      nullptr);
  cuda::SwiGluBackward(SwiGluGradArgs<T>{.gate = gate.data(),
                                         .up = up.data(),
                                         .dout = dout.data(),
                                         .dgate = r.dgate.data(),
                                         .dup = r.dup.data(),
                                         .count = count,
                                         .map = map},
                       nullptr);
  return r;
}

// About ten roundings of 2^-24. Odd ends, whole blocks and one element more, and misaligned arrays.
TYPED_TEST(SwiGluKernel, EqualsTheFormulaInFp64) {
  for (const int64_t count : {0, 1, 31, 2048, 2049, 5000}) {
    for (const int shift : {0, 1}) {
      SCOPED_TRACE(testing::Message() << count << " elements, shift " << shift);
      const Array<TypeParam> gate(Random(count, 1, 4.0), shift), up(Random(count, 2), shift),
          dout(Random(count, 3), shift);
      const Results<TypeParam> got = Run(gate, up, dout, count, shift);
      const Values g = gate.values(), u = up.values(), dy = dout.values();
      Values out, dgate, dup;
      for (int64_t i = 0; i < count; ++i) {
        const double sigmoid = 1 / (1 + std::exp(-g[i]));
        out.push_back(g[i] * sigmoid * u[i]);
        dgate.push_back(dy[i] * u[i] * sigmoid * (1 + g[i] * (1 - sigmoid)));
        dup.push_back(dy[i] * g[i] * sigmoid);
      }
      test::ExpectClose<TypeParam>("out", got.out.values(), out, 1e-6);
      test::ExpectClose<TypeParam>("dgate", got.dgate.values(), dgate, 1e-6);
      test::ExpectClose<TypeParam>("dup", got.dup.values(), dup, 1e-6);
    }
  }
}

TYPED_TEST(SwiGluKernel, BySigmoidsEqualsTheFormulaInFp64) {
  constexpr int64_t kCount = 2049;
  const Array<TypeParam> gate(Random(kCount, 1, 4.0)), up(Random(kCount, 2)),
      dout(Random(kCount, 3));
  const Results<TypeParam> got = Run(gate, up, dout, kCount, 0, GateMap::kSigmoid);
  const Values g = gate.values(), u = up.values(), dy = dout.values();
  Values out, dgate, dup;
  for (int64_t i = 0; i < kCount; ++i) {
    const double sigmoid = 1 / (1 + std::exp(-g[i]));
    out.push_back(sigmoid * u[i]);
    dgate.push_back(dy[i] * u[i] * sigmoid * (1 - sigmoid));
    dup.push_back(dy[i] * sigmoid);
  }
  test::ExpectClose<TypeParam>("out", got.out.values(), out, 1e-6);
  test::ExpectClose<TypeParam>("dgate", got.dgate.values(), dgate, 1e-6);
  test::ExpectClose<TypeParam>("dup", got.dup.values(), dup, 1e-6);
}

// Halves of the rows of one matrix have the bits of separate tensors. 24 columns are whole packs of
// either type, and 100 rows end within a block of threads.
TYPED_TEST(SwiGluKernel, HalvesOfOneMatrix) {
  constexpr int64_t kRows = 100, kWidth = 24, kCount = kRows * kWidth;
  const Array<TypeParam> gate(Random(kCount, 1, 4.0)), up(Random(kCount, 2)),
      dout(Random(kCount, 3));
  const Results<TypeParam> want = Run(gate, up, dout, kCount, 0);
  for (const int shift : {0, 1}) {
    Array<TypeParam> both(2 * kCount, shift), dboth(2 * kCount, shift), out(kCount, shift);
    for (int64_t i = 0; i < kCount; ++i) {
      const int64_t place = SwiGluPlace(i, kWidth, 2 * kWidth);
      both.data()[place] = up.data()[i], both.data()[place + kWidth] = gate.data()[i];
    }
    const TypeParam *const ups = both.data(), *const gates = ups + kWidth;
    cuda::SwiGluForward(SwiGluArgs<TypeParam>{.gate = gates,
                                              .up = ups,
                                              .out = out.data(),
                                              .count = kCount,
                                              .width = kWidth,
                                              .gate_stride = 2 * kWidth,
                                              .up_stride = 2 * kWidth},
                        nullptr);
    cuda::SwiGluBackward(SwiGluGradArgs<TypeParam>{.gate = gates,
                                                   .up = ups,
                                                   .dout = dout.data(),
                                                   .dgate = dboth.data() + kWidth,
                                                   .dup = dboth.data(),
                                                   .count = kCount,
                                                   .width = kWidth,
                                                   .gate_stride = 2 * kWidth,
                                                   .up_stride = 2 * kWidth,
                                                   .dgate_stride = 2 * kWidth,
                                                   .dup_stride = 2 * kWidth},
                         nullptr);
    EXPECT_EQ(out.values(), want.out.values());
    const Values got = dboth.values();
    for (int64_t i = 0; i < kCount; ++i) {
      const int64_t place = SwiGluPlace(i, kWidth, 2 * kWidth);
      ASSERT_EQ(got[place], want.dup.values()[i]) << i;
      ASSERT_EQ(got[place + kWidth], want.dgate.values()[i]) << i;
    }
  }
}

// A gate whose rows are columns of a matrix, with all other tensors dense, has the bits of dense
// rows.
TYPED_TEST(SwiGluKernel, OnlyTheGateIsStrided) {
  constexpr int64_t kRows = 30, kWidth = 24, kCount = kRows * kWidth;
  const Array<TypeParam> gate(Random(kCount, 1, 4.0)), up(Random(kCount, 2)),
      dout(Random(kCount, 3));
  const Results<TypeParam> want = Run(gate, up, dout, kCount, 0);
  for (const int64_t stride : {40, 43}) {
    Array<TypeParam> columns(kRows * stride), out(kCount), dgate(kCount), dup(kCount);
    for (int64_t i = 0; i < kCount; ++i)
      columns.data()[i / kWidth * stride + i % kWidth] = gate.data()[i];
    cuda::SwiGluForward(SwiGluArgs<TypeParam>{.gate = columns.data(),
                                              .up = up.data(),
                                              .out = out.data(),
                                              .count = kCount,
                                              .width = kWidth,
                                              .gate_stride = stride,
                                              .up_stride = kWidth},
                        nullptr);
    cuda::SwiGluBackward(SwiGluGradArgs<TypeParam>{.gate = columns.data(),
                                                   .up = up.data(),
                                                   .dout = dout.data(),
                                                   .dgate = dgate.data(),
                                                   .dup = dup.data(),
                                                   .count = kCount,
                                                   .width = kWidth,
                                                   .gate_stride = stride,
                                                   .up_stride = kWidth,
                                                   .dgate_stride = kWidth,
                                                   .dup_stride = kWidth},
                         nullptr);
    EXPECT_EQ(out.values(), want.out.values());
    EXPECT_EQ(dgate.values(), want.dgate.values());
    EXPECT_EQ(dup.values(), want.dup.values());
  }
}

// Very large inputs fully open or close the gate without NaN.
TYPED_TEST(SwiGluKernel, SaturatesWithoutNan) {
  const Array<TypeParam> gate(Values{-200, 200}), up(Values{3, 3}), dout(Values{1, 1});
  const Results<TypeParam> got = Run(gate, up, dout, 2, 0);
  EXPECT_EQ(got.out.values(), (Values{0, 600}));
  EXPECT_EQ(got.dgate.values(), (Values{0, 3}));
  EXPECT_EQ(got.dup.values(), (Values{0, 200}));
}

TYPED_TEST(SwiGluKernel, NansStayVisible) {
  const Values nan = {std::numeric_limits<double>::quiet_NaN()}, one = {1};
  const Array<TypeParam> bad(nan), good(one);
  EXPECT_TRUE(std::isnan(Run(bad, good, good, 1, 0).out.values()[0]));
  EXPECT_TRUE(std::isnan(Run(good, bad, good, 1, 0).dgate.values()[0]));
  EXPECT_TRUE(std::isnan(Run(good, good, bad, 1, 0).dup.values()[0]));
}

}  // namespace
}  // namespace halflife::kernels
