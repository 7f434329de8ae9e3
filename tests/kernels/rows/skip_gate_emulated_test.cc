// The emulated CUDA kernels of skip gates equal the formula in fp64.

#include "kernels/rows/skip_gate_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

struct Case {
  int64_t num_rows, num_heads, head_dim, stride;  // stride of x, the gate and dgate
  bool gated = true;
  int shift = 0;  // Elements by which every array is misaligned.
  int64_t dim() const { return num_heads * head_dim; }
};

// Less than a pack, heads that end within a pack, whole blocks of columns and more; columns of a
// wider matrix; fewer rows than a block, more than the partial sums cover at once, and none.
constexpr Case kCases[] = {{1, 1, 1, 1},     {9, 3, 5, 15},           {33, 2, 64, 128},
                           {5, 5, 64, 352},  {40, 7, 43, 301, false}, {9, 4, 16, 64, true, 1},
                           {1500, 2, 8, 16}, {0, 2, 8, 16},           {37, 3, 8, 40, false}};

template <typename T>
using SkipGateKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(SkipGateKernel, test::Storages);

template <typename T>
struct Problem {
  explicit Problem(const Case& c)
      : y(Random(c.num_rows * c.dim(), 1), c.shift),
        x(Random(c.num_rows * c.stride, 2), c.shift),
        gate(Random(c.num_rows * c.stride, 3, 2.0), c.shift),
        dout(Random(c.num_rows * c.dim(), 4), c.shift),
        skip(Random(c.num_heads, 5)),
        dskip(Values(c.num_heads, 7.0)),
        out(c.num_rows * c.dim(), c.shift),
        dy(c.num_rows * c.dim(), c.shift),
        dx(c.num_rows * c.dim(), c.shift),
        dgate(Values(c.num_rows * c.stride, 9.0), c.shift) {}

  void Run(const Case& c, bool added) {
    SkipGateRows<T> rows = {.y = y.data(),
                            .x = x.data(),
                            .gate = c.gated ? gate.data() : nullptr,
                            .skip = skip.data(),
                            .out = out.data(),
                            .num_rows = c.num_rows,
                            .num_heads = c.num_heads,
                            .head_dim = c.head_dim,
                            .x_stride = c.stride,
                            .gate_stride = c.gated ? c.stride : 0};
    cuda::SkipGateForward(rows, nullptr);
    rows.out = nullptr;
    Array<float> partials(Values(cuda::NumSkipGatePartials(c.num_rows) * c.dim(), 1e9));
    cuda::SkipGateBackward(SkipGateGradRows<T>{.forward = rows,
                                               .dout = dout.data(),
                                               .dy = dy.data(),
                                               .dx = dx.data(),
                                               .dgate = c.gated ? dgate.data() : nullptr,
                                               .dgate_stride = c.gated ? c.stride : 0},
                           dskip.data(), added, partials.data(), nullptr);
  }

  Array<T> y, x, gate, dout;
  Array<float> skip, dskip;
  Array<T> out, dy, dx, dgate;
};

// 2^-24 of values up to 30, with about five roundings. dskip sums all rows and channels of a head,
// with terms of either sign.
TYPED_TEST(SkipGateKernel, EqualsTheFormulaInFp64) {
  for (const Case& c : kCases) {
    for (const bool added : {false, true}) {
      SCOPED_TRACE(testing::Message() << c.num_rows << " x " << c.num_heads << " x " << c.head_dim
                                      << " in rows of " << c.stride << ", shift " << c.shift);
      Problem<TypeParam> p(c);
      p.Run(c, added);
      const Values y = p.y.values(), x = p.x.values(), gate = p.gate.values(),
                   dout = p.dout.values(), skip = p.skip.values();
      Values out, dy, dx, dgate(c.num_rows * c.stride, 9.0), dskip(c.num_heads, added ? 7.0 : 0.0);
      for (int64_t i = 0; i < c.num_rows * c.dim(); ++i) {
        const int64_t column = i % c.dim(), at = i / c.dim() * c.stride + column;
        const int64_t head = column / c.head_dim;
        const double z = gate[at], sigmoid = 1 / (1 + std::exp(-z));
        const double sum = y[i] + skip[head] * x[at], silu = c.gated ? z * sigmoid : 1;
        out.push_back(sum * silu);
        dy.push_back(dout[i] * silu);
        dx.push_back(skip[head] * dy.back());
        dskip[head] += dy.back() * x[at];
        if (c.gated) dgate[at] = dout[i] * sum * sigmoid * (1 + z * (1 - sigmoid));
      }
      test::ExpectClose<TypeParam>("out", p.out.values(), out, 1e-6);
      test::ExpectClose<TypeParam>("dy", p.dy.values(), dy, 1e-6);
      test::ExpectClose<TypeParam>("dx", p.dx.values(), dx, 1e-6);
      test::ExpectClose<TypeParam>("dgate", p.dgate.values(), dgate, 1e-6);
      test::ExpectClose<float>("dskip", p.dskip.values(), dskip, 3e-6);
    }
  }
}

}  // namespace
}  // namespace halflife::kernels
