// The emulated CUDA kernels of focus heads equal their formulas in fp64.
#include "kernels/rows/focus_heads_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr float kEps = 1e-2f, kScale = 0.3f;
// About ten roundings of 2^-24. The gradient of a vector sums a few hundred tokens.
constexpr double kFp32 = 5e-6;

struct Case {
  int64_t tokens, heads, dim;
  bool times = false, of_tokens = true, value = true, pool_x = true, norm = true, elu = false;
  int shift = 0;       // Elements by which every array is misaligned.
  int64_t beside = 0;  // Other elements between the rows of x and of tensors with its layout.

  int64_t stride() const { return heads * dim + beside; }
  int64_t size() const { return tokens * stride(); }
  int64_t before_value() const { return pool_x ? dim : 0; }
  int64_t width() const { return before_value() + (value ? dim : 0); }
};

std::string Name(const Case& c) {
  return std::to_string(c.tokens) + " x " + std::to_string(c.heads) + " x " +
         std::to_string(c.dim) + (c.times ? ", times" : "") + (c.of_tokens ? "" : ", vector") +
         (c.value ? ", value" : "") + (c.pool_x ? "" : ", x not pooled") +
         (c.norm ? ", norm" : "") + (c.elu ? ", elu" : "") + ", shift " + std::to_string(c.shift) +
         ", " + std::to_string(c.beside) + " beside";
}

// Heads smaller than a pack, of one pack, in whole and partial packs, up to the width of a warp;
// more tokens than a block processes, and than the blocks of a vector's gradient process at once.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t dim : {3, 4, 7, 16, 33, 64, 128})
    for (const int64_t beside : {0, 8}) {
      Case c = {.tokens = 37, .heads = 3, .dim = dim, .beside = beside};
      cases.push_back(c);
      c.of_tokens = c.value = false, c.times = true;
      cases.push_back(c);
    }
  for (const int shift : {0, 1}) {
    Case c = {.tokens = 5, .heads = 2, .dim = 16, .elu = true, .shift = shift};
    c.norm = false;
    cases.push_back(c);
    c.pool_x = false;
    cases.push_back(c);
    c.of_tokens = c.value = false, c.pool_x = c.norm = true;
    cases.push_back(c);
  }
  cases.push_back({.tokens = 1, .heads = 1, .dim = 3});
  cases.push_back({.tokens = 2100, .heads = 2, .dim = 16, .of_tokens = false, .value = false});
  return cases;
}

struct Standardised {
  Values y;
  double factor = 1, slope = 0;
};
Standardised Standardise(const Values& x, bool norm) {
  Standardised s = {.y = x};
  if (!norm) return s;
  const auto dim = static_cast<double>(x.size());
  double mean = 0, squares = 0;
  for (const double value : x) mean += value / dim;
  for (double& value : s.y) value -= mean, squares += value * value;
  const double deviation = std::sqrt(squares / (dim - 1));
  s.factor = 1 / (deviation + kEps), s.slope = (deviation + kEps) / (deviation * (dim - 1));
  for (double& value : s.y) value *= s.factor;
  return s;
}
Values Unstandardise(const Standardised& s, const Values& d, bool norm) {
  if (!norm) return d;
  double mean = 0, dot = 0;
  for (size_t i = 0; i < d.size(); ++i)
    mean += d[i] / static_cast<double>(d.size()), dot += d[i] * s.y[i];
  Values dx(d.size());
  for (size_t i = 0; i < d.size(); ++i) dx[i] = s.factor * (d[i] - mean - s.y[i] * s.slope * dot);
  return dx;
}
double Dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <typename T>
struct Leaves {
  explicit Leaves(const Case& c)
      : x(Random(c.size(), 1), c.shift),
        times(Random(c.size(), 2), c.shift),
        direction(Random(c.size(), 3), c.shift),
        value(Random(c.size(), 4), c.shift),
        dpayload(Random(c.tokens * c.heads * c.width(), 6), c.shift),
        payload(c.tokens * c.heads * c.width(), c.shift),
        dx(Values(c.size(), 7.0), c.shift),
        dtimes(Values(c.size(), 7.0), c.shift),
        ddirection(Values(c.size(), 7.0), c.shift),
        dvalue(Values(c.size(), 7.0), c.shift),
        vector(Random(c.heads * c.dim, 5)),
        dlog_weight(Random(c.tokens * c.heads, 7)),
        log_weight(c.tokens * c.heads),
        dvector(Values(c.heads * c.dim, 7.0)) {}
  Array<T> x, times, direction, value, dpayload, payload, dx, dtimes, ddirection, dvalue;
  Array<float> vector, dlog_weight, log_weight, dvector;
};

template <typename T>
Leaves<T> Run(const Case& c) {
  Leaves<T> a(c);
  const auto rows = [&](const Array<T>& array) {
    return FocusRows<const T>{array.data(), c.stride()};
  };
  const auto written = [&](Array<T>& array) { return FocusRows<T>{array.data(), c.stride()}; };
  FocusLeavesShape<T> shape;
  FocusLeavesGrads<T> grads = {.dlog_weight = a.dlog_weight.data(), .dpayload = a.dpayload.data()};
  shape.x = rows(a.x), grads.dx = written(a.dx);
  if (c.times) shape.times = rows(a.times), grads.dtimes = written(a.dtimes);
  if (c.of_tokens) {
    shape.direction = rows(a.direction), grads.ddirection = written(a.ddirection);
  } else {
    shape.vector = a.vector.data();
    grads.dvector = a.dvector.data(), grads.vector_added = c.norm;
  }
  if (c.value) shape.value = rows(a.value), grads.dvalue = written(a.dvalue);
  shape.num_tokens = c.tokens, shape.num_heads = c.heads, shape.dim = c.dim;
  shape.pool_x = c.pool_x, shape.norm = shape.norm_value = c.norm, shape.elu = c.elu;
  shape.eps = kEps, shape.scale = kScale;
  cuda::FocusLeavesForward(
      shape, FocusLeavesResults<T>{.log_weight = a.log_weight.data(), .payload = a.payload.data()},
      nullptr);
  Array<float> partials(
      Values(cuda::FocusVectorPartials(c.tokens) * c.heads * c.dim, std::nan("")));
  cuda::FocusLeavesBackward(shape, grads, partials.data(), nullptr);
  return a;
}

struct Wanted {
  Values log_weight, payload, dx, dtimes, ddirection, dvalue, dvector;
};

// Returns the channels of one head of a token.
Values Head(const Case& c, const Values& rows, int64_t token, int64_t head) {
  const auto begin = rows.begin() + token * c.stride() + head * c.dim;
  return {begin, begin + c.dim};
}
void Put(const Case& c, const Values& channels, int64_t token, int64_t head, Values& rows) {
  std::copy(channels.begin(), channels.end(), rows.begin() + token * c.stride() + head * c.dim);
}

template <typename T>
Wanted Formula(const Case& c, const Leaves<T>& a) {
  const Values x = a.x.values(), times = a.times.values(), direction = a.direction.values(),
               value = a.value.values(), dpayload = a.dpayload.values(),
               vectors = a.vector.values(), dlog = a.dlog_weight.values();
  Wanted want = {Values(dlog.size()),
                 Values(dpayload.size()),
                 Values(c.size(), 7.0),
                 Values(c.size(), 7.0),
                 Values(c.size(), 7.0),
                 Values(c.size(), 7.0),
                 Values(c.heads * c.dim, c.norm ? 7.0 : 0.0)};
  for (int64_t head = 0; head < c.heads; ++head) {
    const Values given(vectors.begin() + head * c.dim, vectors.begin() + (head + 1) * c.dim);
    const Standardised vector = Standardise(given, c.norm);
    Values sums(c.dim);
    for (int64_t token = 0; token < c.tokens; ++token) {
      const int64_t row = token * c.heads + head;
      const Values own = Head(c, x, token, head), by = Head(c, times, token, head);
      Values product = own;
      for (int64_t i = 0; c.times && i < c.dim; ++i) product[i] *= by[i];
      const Standardised k = Standardise(product, c.norm);
      const Standardised f =
          c.of_tokens ? Standardise(Head(c, direction, token, head), c.norm) : vector;
      const Standardised v = Standardise(Head(c, value, token, head), c.norm);
      const double l = kScale * Dot(k.y, f.y);
      want.log_weight[row] = c.elu && l > 0 ? std::log1p(l) : l;
      const double dl = kScale * dlog[row] * (c.elu && l > 0 ? 1 / (1 + l) : 1);
      const auto at = row * c.width();
      Values dk(c.dim), df(c.dim), dv(c.dim);
      for (int64_t i = 0; i < c.dim; ++i) {
        if (c.pool_x) want.payload[at + i] = k.y[i];
        if (c.value) want.payload[at + c.before_value() + i] = v.y[i];
        dk[i] = dl * f.y[i] + (c.pool_x ? dpayload[at + i] : 0);
        df[i] = dl * k.y[i], sums[i] += df[i];
        if (c.value) dv[i] = dpayload[at + c.before_value() + i];
      }
      dk = Unstandardise(k, dk, c.norm);
      Values dtimes = dk;
      for (int64_t i = 0; c.times && i < c.dim; ++i) dtimes[i] *= own[i], dk[i] *= by[i];
      Put(c, dk, token, head, want.dx);
      if (c.times) Put(c, dtimes, token, head, want.dtimes);
      if (c.of_tokens) Put(c, Unstandardise(f, df, c.norm), token, head, want.ddirection);
      if (c.value) Put(c, Unstandardise(v, dv, c.norm), token, head, want.dvalue);
    }
    sums = Unstandardise(vector, sums, c.norm);
    for (int64_t i = 0; i < c.dim; ++i) want.dvector[head * c.dim + i] += sums[i];
  }
  if (c.of_tokens) want.dvector.assign(c.heads * c.dim, 7.0);
  return want;
}

template <typename T>
using FocusHeadsKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(FocusHeadsKernel, test::Storages);

TYPED_TEST(FocusHeadsKernel, LeavesEqualTheFormulaInFp64) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const Leaves<TypeParam> got = Run<TypeParam>(c);
    const Wanted want = Formula(c, got);
    test::ExpectClose<float>("log_weight", got.log_weight.values(), want.log_weight, kFp32);
    test::ExpectClose<TypeParam>("payload", got.payload.values(), want.payload, kFp32);
    test::ExpectClose<TypeParam>("dx", got.dx.values(), want.dx, kFp32);
    test::ExpectClose<TypeParam>("dtimes", got.dtimes.values(), want.dtimes, kFp32);
    test::ExpectClose<TypeParam>("ddirection", got.ddirection.values(), want.ddirection, kFp32);
    test::ExpectClose<TypeParam>("dvalue", got.dvalue.values(), want.dvalue, kFp32);
    test::ExpectClose<float>("dvector", got.dvector.values(), want.dvector, kFp32);
  }
}

TYPED_TEST(FocusHeadsKernel, TwoRunsGiveTheSameBits) {
  const Case c = {.tokens = 300, .heads = 2, .dim = 24, .of_tokens = false, .value = false};
  const Leaves<TypeParam> first = Run<TypeParam>(c), second = Run<TypeParam>(c);
  EXPECT_EQ(first.dx.values(), second.dx.values());
  EXPECT_EQ(first.dvector.values(), second.dvector.values());
}

TYPED_TEST(FocusHeadsKernel, NoTokensGiveNoGradient) {
  Case c = {.tokens = 0, .heads = 2, .dim = 8, .of_tokens = false, .value = false};
  EXPECT_EQ(Run<TypeParam>(c).dvector.values(), Values(16, 7.0));
  c.norm = false;
  EXPECT_EQ(Run<TypeParam>(c).dvector.values(), Values(16, 0.0));
}

// pooled [tokens, H, width]: the first dim channels are seen, the last ones are passed.
TYPED_TEST(FocusHeadsKernel, GateEqualsTheFormulaInFp64) {
  using T = TypeParam;
  for (const bool apart : {false, true})
    for (Case c : Cases()) {
      SCOPED_TRACE(Name(c) + (apart ? ", apart" : ""));
      const int64_t width = (apart ? 2 : 1) * c.dim, rows = c.tokens * c.heads;
      const Array<T> query(Random(c.size(), 1), c.shift), pooled(Random(rows * width, 2), c.shift),
          dout(Random(rows * c.dim, 3), c.shift);
      Array<T> out(rows * c.dim, c.shift), dquery(Values(c.size(), 7.0), c.shift),
          dpooled(rows * width, c.shift);
      const FocusGateShape<T> shape = {.query = {query.data(), c.stride()},
                                       .pooled = pooled.data(),
                                       .num_tokens = c.tokens,
                                       .num_heads = c.heads,
                                       .dim = c.dim,
                                       .width = width,
                                       .norm = c.norm,
                                       .eps = kEps,
                                       .scale = kScale};
      cuda::FocusGateForward(shape, out.data(), nullptr);
      cuda::FocusGateBackward(shape,
                              FocusGateGrads<T>{.dout = dout.data(),
                                                .dquery = {dquery.data(), c.stride()},
                                                .dpooled = dpooled.data()},
                              nullptr);
      Values want_out(rows * c.dim), want_dquery(c.size(), 7.0), want_dpooled(rows * width);
      const Values given = query.values(), of_pool = pooled.values(), dy = dout.values();
      for (int64_t row = 0; row < rows; ++row) {
        const Standardised q = Standardise(Head(c, given, row / c.heads, row % c.heads), c.norm);
        const auto first = of_pool.begin() + row * width;
        const Values seen(first, first + c.dim), pass(first + width - c.dim, first + width);
        const double gate = 1 / (1 + std::exp(-kScale * Dot(q.y, seen)));
        const Values d(dy.begin() + row * c.dim, dy.begin() + (row + 1) * c.dim);
        const double dl = kScale * gate * (1 - gate) * Dot(d, pass);
        Values dq(c.dim);
        for (int64_t i = 0; i < c.dim; ++i) {
          want_out[row * c.dim + i] = gate * pass[i];
          dq[i] = dl * seen[i];
          want_dpooled[row * width + i] += dl * q.y[i];
          want_dpooled[row * width + width - c.dim + i] += gate * d[i];
        }
        Put(c, Unstandardise(q, dq, c.norm), row / c.heads, row % c.heads, want_dquery);
      }
      test::ExpectClose<T>("out", out.values(), want_out, kFp32);
      test::ExpectClose<T>("dquery", dquery.values(), want_dquery, kFp32);
      test::ExpectClose<T>("dpooled", dpooled.values(), want_dpooled, kFp32);
    }
}

TEST(FocusHeadsKernel, RefusesHeadsThatAreWiderThanAWarp) {
  FocusLeavesShape<float> shape;
  shape.dim = kFocusHeadDim + 1;
  EXPECT_THROW(cuda::FocusLeavesForward(shape, {}, nullptr), std::exception);
}

}  // namespace
}  // namespace halflife::kernels
