// The emulated CUDA kernels of the short convolution equal its definition in fp64.
#include <limits>
#include <memory>

#include "kernels/convolution/short_conv_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr int64_t kBatch = 2;
// Up to 8 products and a sigmoid in forward. The weight's gradient sums a few hundred tokens.
constexpr double kFp32 = 3e-6;

struct Case {
  int64_t seq_len, dim, taps;
  bool tail = true, documents = true;
  int shift = 0;  // Elements by which every array is misaligned.
  bool bias = false, silu = true;
  int64_t x_stride = 0;  // Stride of the rows of x, as columns of one matrix; 0: dense.

  int64_t stride() const { return x_stride > 0 ? x_stride : dim; }
};

std::string Name(const Case& c) {
  return "T " + std::to_string(c.seq_len) + ", D " + std::to_string(c.dim) + ", W " +
         std::to_string(c.taps) + (c.tail ? ", tail" : "") + (c.documents ? ", documents" : "") +
         ", shift " + std::to_string(c.shift) + (c.bias ? ", bias" : "") +
         (c.silu ? "" : ", no SiLU") + ", rows " + std::to_string(c.stride()) + " apart";
}

// Covers lengths around runs of 16 and 32 tokens and below the number of taps; every number of
// taps; channels in whole and partial packs.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t seq_len : {1, 5, 33, 70})
    for (const bool documents : {false, true})
      for (const bool tail : {false, true}) cases.push_back({seq_len, 11, 4, tail, documents});
  for (int64_t taps = 1; taps <= kConvMaxTaps; ++taps) cases.push_back({40, 5, taps});
  cases.push_back({70, 16, 4});
  cases.push_back({70, 16, 4, true, true, /*shift=*/1});
  cases.push_back({35, 16, 8});
  cases.push_back({3, 264, 7});
  for (const int64_t x_stride : {24, 29})
    cases.push_back({70, 16, 4, true, true, /*shift=*/0, true, true, x_stride});
  for (const bool bias : {false, true}) {
    for (const bool silu : {false, true}) {
      if (!bias && silu) continue;  // Covered above.
      for (const int64_t taps : {1, 3, 4, 8})
        for (const int64_t dim : {11, 16})
          cases.push_back({70, dim, taps, true, true, /*shift=*/dim % 2 == 1 ? 1 : 0, bias, silu});
    }
  }
  return cases;
}

// Documents that start with the slice (and hide the tail), inside it, and at several neighbouring
// tokens.
struct Documents {
  explicit Documents(const Case& c)
      : starts(new bool[kBatch * c.seq_len]()), ids(kBatch * c.seq_len) {
    if (c.seq_len > 0) starts[0] = true;
    for (int64_t t = 3; t < c.seq_len; t += 11) starts[c.seq_len + t] = true;
    for (int64_t t = 30; t < std::min<int64_t>(c.seq_len, 35); ++t) starts[t] = true;
    for (int64_t i = 0; i < kBatch * c.seq_len; ++i)
      ids[i] = (i % c.seq_len == 0 ? 0 : ids[i - 1]) + (starts[i] ? 1 : 0);
  }
  std::unique_ptr<bool[]> starts;
  std::vector<int64_t> ids;
};

template <typename T>
struct Problem {
  explicit Problem(const Case& c)
      : x(Random(kBatch * c.seq_len * c.stride(), 1), c.shift),
        tail(Random(kBatch * (c.taps - 1) * c.dim, 2), c.shift),
        dout(Random(kBatch * c.seq_len * c.dim, 3), c.shift),
        weight(Random(c.dim * c.taps, 4), c.shift),
        bias(Random(c.dim, 5), c.shift),
        documents(c) {}
  Array<T> x, tail, dout;
  Array<float> weight, bias;
  Documents documents;
};

template <typename T>
struct Results {
  Array<T> out, dx, dtail;
  Array<float> dweight, dbias;
};

template <typename T>
Results<T> MakeResults(const Case& c) {
  const int64_t size = kBatch * c.seq_len * c.dim;
  return {Array<T>(size, c.shift), Array<T>(Values(kBatch * c.seq_len * c.stride(), 7.0), c.shift),
          Array<T>(kBatch * (c.taps - 1) * c.dim, c.shift), Array<float>(c.dim * c.taps),
          Array<float>(Values(c.dim, 7.0))};
}

template <typename T>
ConvShape<T> ShapeOf(const Case& c, const Problem<T>& p) {
  return {.x = p.x.data(),
          .tail = c.tail ? p.tail.data() : nullptr,
          .weight = p.weight.data(),
          .bias = c.bias ? p.bias.data() : nullptr,
          .documents = c.documents ? p.documents.ids.data() : nullptr,
          .starts = c.documents ? p.documents.starts.get() : nullptr,
          .batch = kBatch,
          .seq_len = c.seq_len,
          .dim = c.dim,
          .x_stride = c.stride(),
          .taps = c.taps,
          .silu = c.silu};
}

// Runs the convolutions of all cases in one launch. They have the same tokens.
template <typename T>
std::vector<Results<T>> RunTogether(const std::vector<Case>& cases,
                                    const std::vector<const Problem<T>*>& problems) {
  std::vector<Results<T>> results;
  for (const Case& c : cases) results.push_back(MakeResults<T>(c));
  ConvParts<T> forward;
  ConvGradParts<T> gradient;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const Problem<T>& p = *problems[i];
    Results<T>& r = results[i];
    forward.parts[forward.num_parts++] = {ShapeOf(c, p), r.out.data()};
    gradient.parts[gradient.num_parts++] = {
        .shape = ShapeOf(c, p),
        .grads = {.dout = p.dout.data(),
                  .dx = r.dx.data(),
                  .dx_stride = c.stride(),
                  .dtail = c.tail ? r.dtail.data() : nullptr},
        .weights = {.dweight = r.dweight.data(), .dbias = r.dbias.data(), .bias_added = true}};
  }
  cuda::ConvForward(forward, nullptr);
  Array<float> workspace(Values(cuda::ConvWorkspaceFloats(gradient), std::nan("")));
  cuda::ConvBackward(gradient, workspace.data(), nullptr);
  return results;
}

template <typename T>
Results<T> Run(const Case& c, const Problem<T>& p) {
  return RunTogether<T>({c}, {&p})[0];
}

// Returns the rows of dx, dense, and checks that nothing was written between them.
template <typename T>
Values RowsOf(const Case& c, const Array<T>& dx) {
  Values rows;
  const Values all = dx.values();
  for (int64_t i = 0; i < kBatch * c.seq_len * c.stride(); ++i) {
    if (i % c.stride() < c.dim) {
      rows.push_back(all[i]);
    } else {
      EXPECT_EQ(all[i], 7.0) << "written outside the columns";
    }
  }
  return rows;
}

struct Wanted {
  Values out, dx, dtail, dweight, dbias;
};

template <typename T>
Wanted Definition(const Case& c, const Problem<T>& p) {
  const Values x = p.x.values(), tail = p.tail.values(), weight = p.weight.values(),
               bias = p.bias.values(), dout = p.dout.values();
  Wanted want = {Values(dout.size()), Values(dout.size()), Values(tail.size()),
                 Values(weight.size()), Values(c.dim, 7.0)};
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t t = 0; t < c.seq_len; ++t) {
      // The tokens that it reads, starting with itself: back to the document start, or to the start
      // of the slice if there are no earlier tokens.
      std::vector<int64_t> tokens = {t};
      while (static_cast<int64_t>(tokens.size()) < c.taps) {
        const int64_t last = tokens.back();
        if (last >= 0 && c.documents && p.documents.starts[b * c.seq_len + last]) break;
        if (last == 0 && !c.tail) break;
        tokens.push_back(last - 1);
      }
      for (int64_t d = 0; d < c.dim; ++d) {
        const auto place = [&](int64_t token) {
          return (token >= 0 ? b * c.seq_len + token : b * (c.taps - 1) + c.taps - 1 + token) *
                     c.dim +
                 d;
        };
        const auto value = [&](int64_t token) {
          return token >= 0 ? x[(b * c.seq_len + token) * c.stride() + d] : tail[place(token)];
        };
        double sum = c.bias ? bias[d] : 0;
        for (size_t i = 0; i < tokens.size(); ++i)
          sum += weight[d * c.taps + c.taps - 1 - static_cast<int64_t>(i)] * value(tokens[i]);
        const double sigmoid = 1 / (1 + std::exp(-sum));
        want.out[place(t)] = c.silu ? sum * sigmoid : sum;
        const double ds = dout[place(t)] * (c.silu ? sigmoid * (1 + sum * (1 - sigmoid)) : 1);
        if (c.bias) want.dbias[d] += ds;
        for (size_t i = 0; i < tokens.size(); ++i) {
          const int64_t tap = d * c.taps + c.taps - 1 - static_cast<int64_t>(i);
          Values& dinput = tokens[i] >= 0 ? want.dx : want.dtail;
          dinput[place(tokens[i])] += weight[tap] * ds;
          want.dweight[tap] += ds * value(tokens[i]);
        }
      }
    }
  }
  return want;
}

template <typename T>
using ConvKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(ConvKernel, test::Storages);

TYPED_TEST(ConvKernel, EqualsTheDefinitionInFp64) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const Problem<TypeParam> p(c);
    const Results<TypeParam> got = Run(c, p);
    const Wanted want = Definition(c, p);
    test::ExpectClose<TypeParam>("out", got.out.values(), want.out, kFp32);
    test::ExpectClose<TypeParam>("dx", RowsOf(c, got.dx), want.dx, kFp32);
    if (c.tail) test::ExpectClose<TypeParam>("dtail", got.dtail.values(), want.dtail, kFp32);
    test::ExpectClose<float>("dweight", got.dweight.values(), want.dweight, kFp32);
    test::ExpectClose<float>("dbias", got.dbias.values(), want.dbias, kFp32);
  }
}

TYPED_TEST(ConvKernel, TwoRunsGiveTheSameBits) {
  const Case c = {70, 24, 4};
  const Problem<TypeParam> p(c);
  const Results<TypeParam> first = Run(c, p), second = Run(c, p);
  EXPECT_EQ(first.out.values(), second.out.values());
  EXPECT_EQ(first.dx.values(), second.dx.values());
  EXPECT_EQ(first.dweight.values(), second.dweight.values());
}

// A NaN stays within its document and within the taps.
// Parts of different widths and alignments, one without a SiLU and one as columns of a matrix.
TYPED_TEST(ConvKernel, SeveralPartsHaveTheBitsOfSingleLaunches) {
  for (const int64_t taps : {4, 7}) {
    SCOPED_TRACE(taps);
    const std::vector<Case> cases = {
        {70, 16, taps},
        {70, 11, taps, true, true, /*shift=*/1, /*bias=*/false, /*silu=*/false},
        {70, 264, taps, true, true, /*shift=*/0, /*bias=*/false, /*silu=*/true, /*x_stride=*/280}};
    std::vector<Problem<TypeParam>> problems;
    for (const Case& c : cases) problems.emplace_back(c);
    std::vector<const Problem<TypeParam>*> all;
    for (Problem<TypeParam>& p : problems) all.push_back(&p);
    const std::vector<Results<TypeParam>> together = RunTogether<TypeParam>(cases, all);
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(Name(cases[i]));
      const Results<TypeParam> alone = Run(cases[i], problems[i]);
      EXPECT_EQ(together[i].out.values(), alone.out.values());
      EXPECT_EQ(together[i].dx.values(), alone.dx.values());
      EXPECT_EQ(together[i].dtail.values(), alone.dtail.values());
      EXPECT_EQ(together[i].dweight.values(), alone.dweight.values());
    }
  }
}

TYPED_TEST(ConvKernel, NansDoNotCrossADocumentsStart) {
  const Case c = {20, 8, 4, /*tail=*/false};
  Problem<TypeParam> p(c);
  p.x.data()[(c.seq_len + 13) * c.dim] =  // Row 1 has document starts at 3 and 14.
      Narrow<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  const Values out = Run(c, p).out.values();
  EXPECT_TRUE(std::isnan(out[(c.seq_len + 13) * c.dim]));
  for (int64_t t = 14; t < c.seq_len; ++t)
    EXPECT_FALSE(std::isnan(out[(c.seq_len + t) * c.dim])) << t;
}

TYPED_TEST(ConvKernel, NoTokensGiveNoGradient) {
  const Case c = {0, 8, 4};
  const Results<TypeParam> got = Run(c, Problem<TypeParam>(c));
  EXPECT_EQ(got.dweight.values(), Values(4 * 8, 0.0));
}

}  // namespace
}  // namespace halflife::kernels
