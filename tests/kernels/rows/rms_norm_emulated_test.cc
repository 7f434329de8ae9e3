// The emulated CUDA kernels of RMSNorm equal the formula in fp64.
#include "kernels/rows/rms_norm_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr float kEps =
    1e-2f;  // Bounds how far the two terms of dx cancel. With one element per row they almost do.
// About ten roundings of 2^-24. dweight sums a few hundred rows.
constexpr double kFp32 = 3e-6;

struct Case {
  int64_t num_rows, dim;
  bool residual = false, gate = false, dsum = false;
  int shift = 0;  // Elements by which every array is misaligned.
  // If not 0, groups of this many rows of the gate have gaps between them, as columns of a wider
  // matrix.
  int64_t gate_rows = 0;
  int64_t gate_stride() const { return gate_rows * dim + 8; }
  bool added = false;  // dweight is added to ones.
};

std::string Name(const Case& c) {
  return std::to_string(c.num_rows) + " x " + std::to_string(c.dim) + (c.residual ? ", sum" : "") +
         (c.gate ? ", gate" : "") + (c.gate_rows > 0 ? " apart" : "") + (c.added ? ", added" : "") +
         (c.dsum ? ", dsum" : "") + ", shift " + std::to_string(c.shift);
}

// Less than a pack, thread groups of each size, whole blocks, and more than a pack per thread;
// multiples of a pack and others; more rows than the gradient has blocks.
std::vector<Case> Cases() {
  std::vector<Case> cases = {{1, 1},   {3, 7},   {37, 16}, {20, 36},
                             {9, 100}, {5, 256}, {5, 301}, {4, 520}};
  for (Case& c : cases)
    c.gate = c.dim % 4 == 0, c.residual = c.dim % 3 == 0, c.dsum = c.dim % 5 == 0;
  cases.push_back({33, 64, true, true, true});
  cases.push_back({33, 64, true, true, true, /*shift=*/1});
  cases.push_back({3, 4500, true, true, true});
  cases.push_back({3, 4501, false, true, false});
  for (const int64_t dim : {7, 64})
    for (const int shift : {0, 1})
      cases.push_back({33, dim, false, true, false, shift, /*gate_rows=*/3, /*added=*/true});
  cases.push_back({cuda::kNormMaxBlocks + 18, 264, false, false, true});
  return cases;
}

template <typename T>
struct Problem {
  explicit Problem(const Case& c)
      : x(Random(c.num_rows * c.dim, 1), c.shift),
        residual(Random(c.num_rows * c.dim, 2), c.shift),
        gate(Random(c.num_rows * c.dim, 3, 3.0), c.shift),
        dout(Random(c.num_rows * c.dim, 4), c.shift),
        dsum(Random(c.num_rows * c.dim, 5), c.shift),
        weight(Random(c.dim, 6), c.shift) {}
  // Returns the gate in the kernel's layout, with NaN in the gaps.
  Array<T> GateApart(const Case& c) const {
    const int64_t groups = c.gate_rows > 0 ? c.num_rows / c.gate_rows : 0;
    Array<T> apart(Values(groups * c.gate_stride(), std::nan("")), c.shift);
    for (int64_t i = 0; i < groups * c.gate_rows * c.dim; ++i)
      apart.data()[i / (c.gate_rows * c.dim) * c.gate_stride() + i % (c.gate_rows * c.dim)] =
          gate.data()[i];
    return apart;
  }
  Array<T> x, residual, gate, dout, dsum;
  Array<float> weight;
};

template <typename T>
struct Results {
  explicit Results(const Case& c)
      : sum(c.num_rows * c.dim, c.shift),
        out(c.num_rows * c.dim, c.shift),
        dx(c.num_rows * c.dim, c.shift),
        dgate(c.num_rows * c.dim, c.shift),
        inverse_rms(c.num_rows),
        dweight(c.dim) {}
  Array<T> sum, out, dx, dgate;
  Array<float> inverse_rms, dweight;
};

template <typename T>
Results<T> Run(const Case& c, const Problem<T>& p) {
  Results<T> r(c);
  const Array<T> apart = p.GateApart(c);
  const T* const gate = !c.gate ? nullptr : c.gate_rows > 0 ? apart.data() : p.gate.data();
  const NormGatePlace gate_place = {std::max<int64_t>(1, c.gate_rows),
                                    c.gate_rows > 0 ? c.gate_stride() : 0};
  if (c.added) std::fill_n(r.dweight.data(), c.dim, 1.0f);
  cuda::NormForward(NormRows<T>{.x = p.x.data(),
                                .residual = c.residual ? p.residual.data() : nullptr,
                                .gate = gate,
                                .gate_place = gate_place,
                                .weight = p.weight.data(),
                                .sum = c.residual ? r.sum.data() : nullptr,
                                .out = r.out.data(),
                                .inverse_rms = r.inverse_rms.data(),
                                .num_rows = c.num_rows,
                                .dim = c.dim,
                                .eps = kEps},
                    nullptr);
  Array<float> workspace(Values(cuda::NormWorkspaceFloats(c.num_rows, c.dim), std::nan("")));
  cuda::NormBackward(NormGradRows<T>{.x = c.residual ? r.sum.data() : p.x.data(),
                                     .gate = gate,
                                     .gate_place = gate_place,
                                     .weight = p.weight.data(),
                                     .inverse_rms = r.inverse_rms.data(),
                                     .dout = p.dout.data(),
                                     .dsum = c.dsum ? p.dsum.data() : nullptr,
                                     .dx = r.dx.data(),
                                     .dgate = c.gate ? r.dgate.data() : nullptr,
                                     .num_rows = c.num_rows,
                                     .dim = c.dim},
                     r.dweight.data(), c.added, workspace.data(), nullptr);
  return r;
}

struct Wanted {
  Values out, dx, dgate, dweight;
};

// The formula of rms_norm_args.h; `x` is the input of the norm.
Wanted Formula(const Case& c, const Values& x, const Values& gate, const Values& weight,
               const Values& dout, const Values& dsum) {
  Wanted want = {Values(x.size()), Values(x.size()), Values(x.size()),
                 Values(c.dim, c.added ? 1 : 0)};
  for (int64_t row = 0; row < c.num_rows; ++row) {
    double squares = 0, dot = 0;
    for (int64_t i = row * c.dim; i < (row + 1) * c.dim; ++i) squares += x[i] * x[i];
    const double rms = std::sqrt(squares / static_cast<double>(c.dim) + kEps);
    const auto sigmoid = [&](int64_t i) { return 1 / (1 + std::exp(-gate[i])); };
    const auto silu = [&](int64_t i) { return c.gate ? gate[i] * sigmoid(i) : 1.0; };
    for (int64_t j = 0; j < c.dim; ++j) {
      const int64_t i = row * c.dim + j;
      const double n = x[i] / rms, m = dout[i] * silu(i);
      want.out[i] = n * weight[j] * silu(i);
      want.dweight[j] += m * n;
      dot += m * weight[j] * n / static_cast<double>(c.dim);
      if (c.gate)
        want.dgate[i] = dout[i] * n * weight[j] * sigmoid(i) * (1 + gate[i] * (1 - sigmoid(i)));
    }
    for (int64_t j = 0; j < c.dim; ++j) {
      const int64_t i = row * c.dim + j;
      want.dx[i] =
          (dout[i] * silu(i) * weight[j] - x[i] / rms * dot) / rms + (c.dsum ? dsum[i] : 0.0);
    }
  }
  return want;
}

template <typename T>
using NormKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(NormKernel, test::Storages);

TYPED_TEST(NormKernel, EqualsTheFormulaInFp64) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const Problem<TypeParam> p(c);
    const Results<TypeParam> got = Run(c, p);
    Values normed = p.x.values();
    if (c.residual) {
      const Values residual = p.residual.values(), sum = got.sum.values();
      for (size_t i = 0; i < normed.size(); ++i) normed[i] += residual[i];
      test::ExpectClose<TypeParam>("sum", sum, normed, 0x1p-24);
      normed = sum;
    }
    const Wanted want =
        Formula(c, normed, p.gate.values(), p.weight.values(), p.dout.values(), p.dsum.values());
    test::ExpectClose<TypeParam>("out", got.out.values(), want.out, kFp32);
    test::ExpectClose<TypeParam>("dx", got.dx.values(), want.dx, kFp32);
    test::ExpectClose<float>("dweight", got.dweight.values(), want.dweight, kFp32);
    if (c.gate) test::ExpectClose<TypeParam>("dgate", got.dgate.values(), want.dgate, kFp32);
  }
}

TYPED_TEST(NormKernel, TwoRunsGiveTheSameBits) {
  const Case c = {200, 40, true, true, true};
  const Problem<TypeParam> p(c);
  const Results<TypeParam> first = Run(c, p), second = Run(c, p);
  EXPECT_EQ(first.out.values(), second.out.values());
  EXPECT_EQ(first.dx.values(), second.dx.values());
  EXPECT_EQ(first.dgate.values(), second.dgate.values());
  EXPECT_EQ(first.dweight.values(), second.dweight.values());
}

TYPED_TEST(NormKernel, NoRowsGiveNoGradient) {
  const Case c = {0, 40};
  EXPECT_EQ(Run(c, Problem<TypeParam>(c)).dweight.values(), Values(40, 0.0));
}

}  // namespace
}  // namespace halflife::kernels
