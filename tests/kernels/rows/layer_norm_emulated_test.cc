// The emulated CUDA kernels of layer norm equal the formula in fp64.
#include "kernels/rows/layer_norm_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr float kEps = 1e-2f;
// About ten roundings of 2^-24. The gradients of gamma and beta sum a few hundred rows.
constexpr double kFp32 = 3e-6;

struct Case {
  int64_t num_rows, dim;
  int num_parts = 2;
  bool beta = true;
  int shift = 0;  // Elements by which every array is misaligned.
  // Adjacent rows of x and dx, followed by 8 other elements.
  int64_t rows = 1;
  int64_t stride() const { return rows * dim + 8; }
  int64_t place(int64_t row) const { return row / rows * stride() + row % rows * dim; }
  int64_t size() const { return num_rows / rows * stride(); }
};

std::string Name(const Case& c) {
  return std::to_string(c.num_rows) + " x " + std::to_string(c.dim) + ", " +
         std::to_string(c.num_parts) + " parts" + (c.beta ? ", beta" : "") + ", " +
         std::to_string(c.rows) + " rows together, shift " + std::to_string(c.shift);
}

// Less than a pack, thread groups of each size, whole blocks, and more than a pack per thread;
// multiples of a pack and others; more rows than the gradient has blocks.
std::vector<Case> Cases() {
  std::vector<Case> cases = {{1, 1},   {3, 7},   {37, 16}, {20, 36},
                             {9, 100}, {5, 256}, {5, 301}, {4, 520}};
  for (const int num_parts : {1, 2})
    for (const bool beta : {false, true})
      for (const int shift : {0, 1}) cases.push_back({33, 64, num_parts, beta, shift});
  for (const int64_t dim : {7, 64}) cases.push_back({33, dim, 2, true, 0, /*rows=*/3});
  cases.push_back({3, 4500});
  cases.push_back({3, 4501, 2, false});
  cases.push_back({cuda::kLayerNormMaxBlocks + 14, 264});
  return cases;
}

struct OfPart {
  Values x, gamma, beta, dout;
  Values out, dx, dgamma, dbeta;  // Expected or actual.
};

// Returns whether the part's gradients are added to the outputs.
constexpr bool Adds(int part) { return part == 1; }

// The formula of layer_norm_args.h in the rows' layout, and 7 where nothing is written.
void Formula(const Case& c, int part, OfPart& of) {
  of.out.assign(c.num_rows * c.dim, 0);
  of.dx.assign(c.size(), 7);
  of.dgamma.assign(c.dim, Adds(part) ? 7 : 0), of.dbeta = of.dgamma;
  for (int64_t row = 0; row < c.num_rows; ++row) {
    const double width = static_cast<double>(c.dim);
    const double* const x = of.x.data() + c.place(row);
    double mean = 0, squares = 0, level = 0, along = 0;
    for (int64_t i = 0; i < c.dim; ++i) mean += x[i] / width;
    for (int64_t i = 0; i < c.dim; ++i) squares += (x[i] - mean) * (x[i] - mean) / width;
    const double factor = 1 / std::sqrt(squares + kEps);
    for (int64_t i = 0; i < c.dim; ++i) {
      const double n = (x[i] - mean) * factor, dy = of.dout[row * c.dim + i];
      of.out[row * c.dim + i] = n * of.gamma[i] + (c.beta ? of.beta[i] : 0);
      of.dgamma[i] += dy * n, of.dbeta[i] += dy;
      level += dy * of.gamma[i] / width, along += dy * of.gamma[i] * n / width;
    }
    for (int64_t i = 0; i < c.dim; ++i)
      of.dx[c.place(row) + i] = factor * (of.dout[row * c.dim + i] * of.gamma[i] - level -
                                          (x[i] - mean) * factor * along);
  }
}

// Returns one part in the kernels' form.
template <typename T>
struct Arrays {
  Arrays(const Case& c, int part)
      : x(Random(c.size(), 1 + part), c.shift),
        dout(Random(c.num_rows * c.dim, 3 + part), c.shift),
        gamma(Random(c.dim, 5 + part), c.shift),
        beta(Random(c.dim, 7 + part), c.shift),
        out(c.num_rows * c.dim, c.shift),
        dx(Values(c.size(), 7.0), c.shift),
        mean(c.num_rows),
        factor(c.num_rows),
        dgamma(Values(c.dim, 7.0)),
        dbeta(Values(c.dim, 7.0)) {}
  Array<T> x, dout;
  Array<float> gamma, beta;
  Array<T> out, dx;
  Array<float> mean, factor, dgamma, dbeta;

  OfPart Inputs() const {
    return {.x = x.values(), .gamma = gamma.values(), .beta = beta.values(), .dout = dout.values()};
  }
};

template <typename T>
std::vector<Arrays<T>> Run(const Case& c) {
  std::vector<Arrays<T>> parts;
  for (int i = 0; i < c.num_parts; ++i) parts.emplace_back(c, i);
  const LayerNormRows place = {.rows = c.rows, .stride = c.stride()};
  LayerNormArgs<T> args;
  LayerNormGradArgs<T> grads;
  args.num_rows = grads.num_rows = c.num_rows, args.dim = grads.dim = c.dim, args.eps = kEps;
  args.num_parts = grads.num_parts = c.num_parts;
  for (int i = 0; i < c.num_parts; ++i) {
    Arrays<T>& part = parts[i];
    args.parts[i] = {.x = part.x.data(),
                     .place = place,
                     .gamma = part.gamma.data(),
                     .beta = c.beta ? part.beta.data() : nullptr,
                     .out = part.out.data(),
                     .mean = part.mean.data(),
                     .factor = part.factor.data()};
    grads.parts[i] = {.x = part.x.data(),
                      .place = place,
                      .gamma = part.gamma.data(),
                      .mean = part.mean.data(),
                      .factor = part.factor.data(),
                      .dout = part.dout.data(),
                      .dx = part.dx.data(),
                      .dx_place = place,
                      .dgamma = part.dgamma.data(),
                      .dbeta = c.beta ? part.dbeta.data() : nullptr,
                      .gamma_added = Adds(i),
                      .beta_added = Adds(i)};
  }
  cuda::LayerNormForward(args, nullptr);
  Array<float> partials(
      Values(cuda::LayerNormPartials(c.num_rows) * c.num_parts * 2 * c.dim, std::nan("")));
  cuda::LayerNormBackward(grads, partials.data(), nullptr);
  return parts;
}

template <typename T>
using LayerNormKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(LayerNormKernel, test::Storages);

TYPED_TEST(LayerNormKernel, EqualsTheFormulaInFp64) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const std::vector<Arrays<TypeParam>> got = Run<TypeParam>(c);
    for (int i = 0; i < c.num_parts; ++i) {
      OfPart want = got[i].Inputs();
      Formula(c, i, want);
      test::ExpectClose<TypeParam>("out", got[i].out.values(), want.out, kFp32);
      test::ExpectClose<TypeParam>("dx", got[i].dx.values(), want.dx, kFp32);
      test::ExpectClose<float>("dgamma", got[i].dgamma.values(), want.dgamma, kFp32);
      test::ExpectClose<float>("dbeta", got[i].dbeta.values(),
                               c.beta ? want.dbeta : Values(c.dim, 7.0), kFp32);
    }
  }
}

TYPED_TEST(LayerNormKernel, TwoRunsGiveTheSameBits) {
  const Case c = {270, 24};
  const auto first = Run<TypeParam>(c), second = Run<TypeParam>(c);
  EXPECT_EQ(first[1].dx.values(), second[1].dx.values());
  EXPECT_EQ(first[1].dgamma.values(), second[1].dgamma.values());
}

TYPED_TEST(LayerNormKernel, NoRowsGiveNoGradient) {
  const auto got = Run<TypeParam>({0, 8});
  EXPECT_EQ(got[0].dgamma.values(), Values(8, 0.0));
  EXPECT_EQ(got[1].dgamma.values(), Values(8, 7.0));
}

}  // namespace
}  // namespace halflife::kernels
