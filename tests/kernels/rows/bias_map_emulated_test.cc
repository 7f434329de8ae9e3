// The emulated CUDA kernels of biased and activated projections equal the formulas in fp64.
#include <limits>
#include <utility>

#include "kernels/rows/bias_map_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

template <typename T>
using BiasMapKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(BiasMapKernel, test::Storages);

struct Case {
  int64_t num_rows;
  std::vector<int64_t> widths;
  int64_t stride = 0;  // Stride of x and dx, as columns of one matrix; 0: contiguous.
  int shift = 0;       // Elements by which every array is misaligned.
};

// Less than a pack, odd ends, several blocks of columns in a part, columns that end within a
// matrix, widths that allow 16-byte accesses and that do not; fewer rows than a block, and more
// than the partial sums cover at once.
const Case kCases[] = {{1, {1}},
                       {9, {7, 300}},
                       {33, {16, 16, 24}},
                       {33, {64, 8, 16}, 96},
                       {33, {64, 8, 16}, 96, 1},
                       {20, {5, 3, 9, 2}, 19},
                       {1500, {8, 8, 8}, 24},
                       {40, {600, 8}}};

template <typename T>
struct Part {
  Array<T> bias, out, dout;
  Array<float> gain, dbias, dgain;
  ElementMap map;
  int64_t width, stride, place;  // Start of the first row in x and dx.
};

// Parts have activations in rotation, with and without a bias. The second of up to three has a
// gain.
template <typename T>
struct Problem {
  explicit Problem(const Case& c) : num_rows(c.num_rows), x(0), dx(0) {
    int64_t begin = 0;
    for (size_t i = 0; i < c.widths.size(); ++i) {
      const int64_t width = c.widths[i], count = num_rows * width;
      parts.push_back({.bias = Array<T>(Random(width, 10 + i), c.shift),
                       .out = Array<T>(count, c.shift),
                       .dout = Array<T>(Random(count, 20 + i), c.shift),
                       .gain = Array<float>(Random(width, 30 + i), c.shift),
                       .dbias = Array<float>(Values(width, 7.0), c.shift),
                       .dgain = Array<float>(Values(width, 3.0), c.shift),
                       .map = kMaps[i % 3],
                       .width = width,
                       .stride = c.stride > 0 ? c.stride : width,
                       .place = begin});
      begin += c.stride > 0 ? width : count;
    }
    const int64_t size = c.stride > 0 ? num_rows * c.stride : begin;
    x = Array<T>(Random(size, 1, 2.0), c.shift);
    dx = Array<T>(Values(size, -5.0), c.shift);
  }
  static constexpr ElementMap kMaps[] = {ElementMap::kEluPlusOne, ElementMap::kIdentity,
                                         ElementMap::kSilu};
  static bool HasBias(size_t i) { return i != 3; }
  bool HasGain(size_t i) const { return i == 1 && parts.size() <= 3; }
  static bool Adds(size_t i) { return i == 1; }

  void Run() {
    BiasMapArgs<T> args;
    BiasMapGradArgs<T> grads;
    args.num_rows = grads.num_rows = num_rows;
    args.num_parts = grads.num_parts = static_cast<int>(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      Part<T>& part = parts[i];
      args.parts[i] = {.x = x.data() + part.place,
                       .bias = HasBias(i) ? part.bias.data() : nullptr,
                       .gain = HasGain(i) ? part.gain.data() : nullptr,
                       .out = part.out.data(),
                       .width = part.width,
                       .stride = part.stride,
                       .map = part.map};
      grads.parts[i] = {.out = part.out.data(),
                        .dout = part.dout.data(),
                        .dx = dx.data() + part.place,
                        .dbias = HasBias(i) ? part.dbias.data() : nullptr,
                        .added = Adds(i),
                        .width = part.width,
                        .stride = part.stride,
                        .map = part.map,
                        .x = x.data() + part.place,
                        .x_stride = part.stride,
                        .bias = args.parts[i].bias,
                        .gain = args.parts[i].gain,
                        .dgain = HasGain(i) ? part.dgain.data() : nullptr,
                        .gain_added = true};
    }
    cuda::BiasMapForward(args, nullptr);
    Array<float> partials(Values(cuda::NumBiasMapPartials(num_rows) * grads.num_columns(), 1e9));
    cuda::BiasMapBackward(grads, partials.data(), nullptr);
  }

  int64_t num_rows;
  Array<T> x, dx;
  std::vector<Part<T>> parts;
};

// Returns map(z) and its slope. For elu + 1 the slope is computed from the stored feature.
std::pair<double, double> MapOf(ElementMap map, double z, double feature) {
  if (map == ElementMap::kIdentity) return {z, 1};
  if (map == ElementMap::kEluPlusOne)
    return {std::exp(std::min(z, 0.0)) + std::max(z, 0.0), std::min(feature, 1.0)};
  const double s = 1 / (1 + std::exp(-z));
  return {z * s, s * (1 + z * (1 - s))};
}

// 2^-24 of a sum of two and an exponential. dbias sums all rows, with terms of either sign.
TYPED_TEST(BiasMapKernel, EqualsTheFormulaInFp64) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message()
                 << c.num_rows << " rows, " << c.widths.size() << " parts from " << c.widths[0]
                 << ", stride " << c.stride << ", shift " << c.shift);
    Problem<TypeParam> p(c);
    p.Run();
    const Values x = p.x.values(), dx = p.dx.values();
    std::vector<bool> written(dx.size(), false);
    for (size_t i = 0; i < p.parts.size(); ++i) {
      SCOPED_TRACE(i);
      const Part<TypeParam>& part = p.parts[i];
      const Values bias = part.bias.values(), dout = part.dout.values(), out = part.out.values();
      const Values gain = p.HasGain(i) ? part.gain.values() : Values(part.width, 1.0);
      Values want_out, want_dx, got_dx;
      Values dbias(part.width, p.Adds(i) ? 7.0 : 0.0), dgain(part.width, 3.0);
      for (int64_t n = 0; n < c.num_rows * part.width; ++n) {
        const int64_t column = n % part.width;
        const int64_t place = part.place + n / part.width * part.stride + column;
        const double z = gain[column] * x[place] + (p.HasBias(i) ? bias[column] : 0);
        const auto [mapped, slope] = MapOf(part.map, z, out[n]);
        const double d = dout[n] * slope;
        want_out.push_back(mapped);
        want_dx.push_back(d * gain[column]);
        got_dx.push_back(dx[place]);
        written[place] = true;
        dbias[column] += d;
        if (p.HasGain(i)) dgain[column] += d * x[place];
      }
      test::ExpectClose<TypeParam>("out", out, want_out, 1e-6);
      test::ExpectClose<TypeParam>("dx", got_dx, want_dx, 1e-6);
      if (!p.HasBias(i)) dbias = Values(part.width, 7.0);
      test::ExpectClose<float>("dbias", part.dbias.values(), dbias, 3e-6);
      test::ExpectClose<float>("dgain", part.dgain.values(), dgain, 3e-6);
    }
    for (size_t i = 0; i < dx.size(); ++i)
      ASSERT_TRUE(written[i] || dx[i] == -5) << "dx outside its columns, " << i;
  }
}

// Without an output for dx, the biases' gradients have the same bits. Without any gradient, no
// memory is accessed.
TYPED_TEST(BiasMapKernel, OnlySums) {
  const Case c = {33, {24}};
  Problem<TypeParam> p(c);
  p.Run();
  const Values want = p.parts[0].dbias.values();
  Array<float> partials(Values(cuda::NumBiasMapPartials(33) * 24, 1e9)), dbias(24);
  BiasMapGradArgs<TypeParam> grads;
  grads.num_rows = 33;
  grads.num_parts = 1;
  grads.parts[0] = {.out = p.parts[0].out.data(),
                    .dout = p.parts[0].dout.data(),
                    .dx = nullptr,
                    .dbias = dbias.data(),
                    .added = false,
                    .width = 24,
                    .stride = 24,
                    .map = p.parts[0].map};
  cuda::BiasMapBackward(grads, partials.data(), nullptr);
  EXPECT_EQ(dbias.values(), want);
  grads.parts[0].dbias = nullptr;
  cuda::BiasMapBackward(grads, partials.data(), nullptr);
}

TYPED_TEST(BiasMapKernel, FarValuesAndNan) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Case c = {1, {4}};
  Problem<TypeParam> p(c);
  p.x = Array<TypeParam>(Values{-kInfinity, kInfinity, std::nan(""), -200});
  p.parts[0].bias = Array<TypeParam>(Values(4, 0.0));
  p.parts[0].dout = Array<TypeParam>(Values(4, 1.0));
  p.Run();
  const Values out = p.parts[0].out.values(), dx = p.dx.values();
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], kInfinity);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_NEAR(out[3], 0, 1e-30);
  EXPECT_EQ(dx[0], 0);
  EXPECT_EQ(dx[1], 1);
  EXPECT_TRUE(std::isnan(dx[2]));
}

}  // namespace
}  // namespace halflife::kernels
