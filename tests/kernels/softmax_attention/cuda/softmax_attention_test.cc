// The emulated CUDA kernels of softmax attention equal the definition.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/bfloat16.h"
#include "core/error.h"
#include "kernels/softmax_attention/cuda/pairs_reference.h"
#include "kernels/softmax_attention/softmax_attention_args.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Bounded;
using test::PairsProblem;
using test::PairsReference;
using test::PairsResult;

using Values = std::vector<double>;

struct Shape {
  const char* name = "";
  int seq_len = 70, num_past = 0, heads = 1, kv_heads = 1, dim = 16, dim_v = 16;
  int window = 0, sinks = 0;
  bool bidirectional = false, bias = false, bias_scale = false, squared_relu = false;
  std::vector<int> starts = {0};  // Document starts, as indices of keys.
  int batch = 1;
  double dropout = 0;
};

// Every part of the formula, with sizes at and between the edges of tiles.
const std::vector<Shape> kShapes = {
    {.name = "one token", .seq_len = 1},
    {.name = "a tile", .seq_len = 64, .dim = 64, .dim_v = 64},
    {.name = "three tiles", .seq_len = 129, .dim = 40, .dim_v = 24},
    {.name = "rows that 16 bytes do not divide", .seq_len = 66, .dim = 12, .dim_v = 9},
    {.name = "wide heads", .seq_len = 65, .dim = 128, .dim_v = 128},
    {.name = "heads of 96", .seq_len = 66, .dim = 96, .dim_v = 72},
    {.name = "shared keys", .heads = 4, .kv_heads = 2, .batch = 2},
    {.name = "a past", .seq_len = 66, .num_past = 67},
    {.name = "documents", .seq_len = 200, .starts = {0, 1, 63, 64, 130}},
    {.name = "a window", .seq_len = 200, .window = 70, .starts = {0, 20}},
    {.name = "a window and sinks", .seq_len = 260, .window = 10, .sinks = 3, .starts = {0, 70}},
    {.name = "more sinks than tokens",
     .seq_len = 70,
     .window = 2,
     .sinks = 5,
     .starts = {0, 64, 66}},
    {.name = "bias", .seq_len = 130, .num_past = 3, .heads = 2, .bias = true},
    {.name = "scaled bias with sinks",
     .seq_len = 140,
     .window = 33,
     .sinks = 2,
     .bias = true,
     .bias_scale = true,
     .starts = {0, 40}},
    {.name = "both ways", .seq_len = 150, .bidirectional = true, .starts = {0, 1, 63, 64, 130}},
    {.name = "bias both ways",
     .seq_len = 150,
     .window = 40,
     .bidirectional = true,
     .bias = true,
     .starts = {0, 100}},
    {.name = "slices of V", .seq_len = 70, .heads = 2, .dim = 24, .dim_v = 136},
    {.name = "slices of V, three, with bias", .seq_len = 66, .dim = 72, .dim_v = 264, .bias = true},
    {.name = "squared ReLU", .seq_len = 140, .squared_relu = true, .starts = {0, 10}},
    {.name = "squared ReLU with sinks",
     .seq_len = 140,
     .window = 20,
     .sinks = 3,
     .squared_relu = true,
     .starts = {0, 10}},
    {.name = "squared ReLU of slices, both ways",
     .seq_len = 70,
     .dim_v = 200,
     .bidirectional = true,
     .bias = true,
     .squared_relu = true,
     .starts = {0, 33}},
    {.name = "dropout",
     .seq_len = 140,
     .num_past = 3,
     .heads = 4,
     .kv_heads = 2,
     .starts = {0, 40},
     .batch = 2,
     .dropout = 0.3},
    {.name = "dropout with bias both ways",
     .seq_len = 130,
     .heads = 2,
     .bidirectional = true,
     .bias = true,
     .dropout = 0.1},
    {.name = "dropout of slices of V", .seq_len = 70, .dim = 72, .dim_v = 136, .dropout = 0.2},
    {.name = "dropout of squared ReLU",
     .seq_len = 140,
     .dim_v = 200,
     .squared_relu = true,
     .starts = {0, 10},
     .dropout = 0.2}};

class Draw {
 public:
  Values operator()(size_t count, double spread = 1, bool narrow = true) {
    Values values(count);
    for (double& x : values) {
      x = static_cast<float>(spread * normal_(random_));
      if (narrow) x = Widen(RoundToBf16(static_cast<float>(x)));
    }
    return values;
  }

 private:
  std::mt19937_64 random_{7};
  std::normal_distribution<double> normal_;
};

PairsProblem MakeProblem(const Shape& shape) {
  PairsProblem p = {.batch = shape.batch,
                    .num_queries = shape.seq_len,
                    .num_past = shape.num_past,
                    .heads = shape.heads,
                    .kv_heads = shape.kv_heads,
                    .dim = shape.dim,
                    .dim_v = shape.dim_v,
                    .scale = 1 / std::sqrt(shape.dim),
                    .squared_relu = shape.squared_relu,
                    .num_sinks = shape.sinks,
                    .dropout = shape.dropout,
                    .key = MakeRandomKey(3, RandomPurpose::kTest, 4)};
  for (int b = 0; b < p.batch && p.dropout > 0; ++b) p.samples.push_back((uint64_t{7} << 32) + b);
  const int num_keys = p.num_keys();
  for (int b = 0; b < p.batch; ++b)
    for (int place = p.num_past; place < num_keys; ++place) {
      size_t document = shape.starts.size() - 1;
      while (shape.starts[document] > place) --document;
      const int start = shape.starts[document];
      const bool last = document + 1 == shape.starts.size();
      const int stop = !shape.bidirectional ? place + 1
                       : last               ? num_keys
                                            : shape.starts[document + 1];
      const int window = shape.window > 0 ? shape.window : num_keys;
      p.first.push_back(std::max(start, place - window + 1));
      p.end.push_back(std::min(stop, place + window));
      p.sinks.push_back(start);
    }
  Draw draw;
  const size_t queries = size_t{1} * p.batch * p.num_queries * p.heads;
  const size_t keys = size_t{1} * p.batch * num_keys * p.kv_heads;
  p.q = draw(queries * p.dim), p.k = draw(keys * p.dim);
  p.v = draw(keys * p.dim_v), p.dout = draw(queries * p.dim_v);
  if (!shape.bias) return p;
  // Tiles with other numbers at both ends, which must not be read.
  const int ahead = shape.bidirectional ? num_keys - 1 : 0;
  p.bias_stride = num_keys + ahead + 2 * kAttentionTile;
  p.bias_zero = p.bias_stride - kAttentionTile - 1 - ahead;
  p.bias = draw(p.heads * p.bias_stride, 1, false);
  if (shape.bias_scale) p.bias_scale = draw(size_t{1} * p.batch * p.num_queries, 1, false);
  return p;
}

std::vector<float> Floats(const Values& values) { return {values.begin(), values.end()}; }

// [B, tokens, heads, width] in bf16.
class Rows {
 public:
  Rows(int tokens, int heads, int width, const Values& values)
      : tokens_(tokens), heads_(heads), width_(width) {
    for (const double x : values) data_.push_back(RoundToBf16(static_cast<float>(x)));
  }
  TensorView view() {
    const int64_t token = int64_t{1} * heads_ * width_;
    return {data_.data(), token * tokens_, token, width_, DType::kBF16};
  }
  Values Get() const {
    Values values;
    for (const Bf16 x : data_) values.push_back(Widen(x));
    return values;
  }

 private:
  int tokens_, heads_, width_;
  std::vector<Bf16> data_;
};

// Expects errors within the bounds of bf16 rounding, plus a margin for repeated rounding and for
// sums in fp32.
void ExpectWithin(const char* name, const Values& got, const Bounded& want) {
  constexpr double kBf16 = 1.0 / 256, kFloat = 3e-5;
  ASSERT_EQ(got.size(), want.value.size()) << name;
  size_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(got[i] - want.value[i]);
    if (off <= kBf16 * want.bound[i] * 1.02 + kFloat) continue;
    if (++wrong == 1)
      ADD_FAILURE() << name << "[" << i << "] is " << got[i] << ", not " << want.value[i]
                    << ", off by " << off << " where " << kBf16 * want.bound[i] << " would do";
  }
  EXPECT_EQ(wrong, 0u) << name << ": elements off, of " << got.size();
}

// One call of the kernels: inputs from a problem, outputs filled with NaN.
struct Call {
  explicit Call(const PairsProblem& problem)
      : p(problem),
        q(p.num_queries, p.heads, p.dim, p.q),
        k(p.num_keys(), p.kv_heads, p.dim, p.k),
        v(p.num_keys(), p.kv_heads, p.dim_v, p.v),
        dout(p.num_queries, p.heads, p.dim_v, p.dout),
        out(p.num_queries, p.heads, p.dim_v, Values(p.dout.size(), NAN)),
        dq(p.num_queries, p.heads, p.dim, Values(p.q.size(), NAN)),
        dk(p.num_keys(), p.kv_heads, p.dim, Values(p.k.size(), NAN)),
        dv(p.num_keys(), p.kv_heads, p.dim_v, Values(p.v.size(), NAN)),
        log_sum(size_t{1} * p.batch * p.num_queries * p.heads, NAN),
        bias(Floats(p.bias)),
        bias_scale(Floats(p.bias_scale)),
        dbias(p.batch * p.bias.size(), 0.0f) {
    SoftmaxAttentionArgs& args = grads.forward;
    args.batch = p.batch, args.num_queries = p.num_queries, args.num_keys = p.num_keys();
    args.num_past = p.num_past;
    args.num_heads = p.heads, args.num_kv_heads = p.kv_heads;
    args.head_dim = p.dim, args.head_dim_v = p.dim_v;
    args.scale = p.scale, args.squared_relu = p.squared_relu;
    args.q = q.view(), args.k = k.view(), args.v = v.view(), args.out = out.view();
    args.first = p.first.data(), args.end = p.end.data(), args.sinks = p.sinks.data();
    args.num_sinks = p.num_sinks;
    if (!bias.empty()) args.bias = bias.data();
    args.bias_stride = p.bias_stride, args.bias_zero = p.bias_zero;
    if (!bias_scale.empty()) args.bias_scale = bias_scale.data();
    args.log_sum = log_sum.data();
    if (p.dropout > 0)
      args.dropout = {.samples = p.samples.data(),
                      .key = p.key,
                      .threshold = DropoutThreshold(p.dropout),
                      .scale = 1 / (1 - p.dropout)};
    grads.dout = dout.view(), grads.dq = dq.view(), grads.dk = dk.view(), grads.dv = dv.view();
    if (!bias.empty()) grads.dbias = dbias.data();
    workspace.resize(cuda::WorkspaceBytes(grads) / sizeof(double) + 1, NAN);
    grads.workspace = workspace.data();
  }

  const PairsProblem& p;
  Rows q, k, v, dout, out, dq, dk, dv;
  std::vector<float> log_sum, bias, bias_scale, dbias;
  std::vector<double> workspace;
  SoftmaxAttentionGradArgs grads;
};

void ExpectAll(const Shape& shape) {
  SCOPED_TRACE(shape.name);
  const PairsProblem p = MakeProblem(shape);
  const PairsResult want = PairsReference(p);
  Call call(p);
  cuda::Forward(call.grads.forward, nullptr);
  ExpectWithin("out", call.out.Get(), want.out);
  if (!p.squared_relu) {
    for (size_t i = 0; i < want.log_sum.size(); ++i)
      ASSERT_NEAR(call.log_sum[i], want.log_sum[i], 1e-4) << "log_sum " << i;
  }
  cuda::Backward(call.grads, nullptr);
  ExpectWithin("dq", call.dq.Get(), want.dq);
  ExpectWithin("dk", call.dk.Get(), want.dk);
  ExpectWithin("dv", call.dv.Get(), want.dv);
  if (shape.bias) ExpectWithin("dbias", {call.dbias.begin(), call.dbias.end()}, want.dbias);
}

TEST(CudaSoftmaxAttention, IsItsDefinition) {
  for (const Shape& shape : kShapes) ExpectAll(shape);
}

// Large scores use a running maximum, so none overflows, in any order.
TEST(CudaSoftmaxAttention, LargeScores) {
  PairsProblem p = MakeProblem({.seq_len = 130, .dim = 16, .dim_v = 8});
  p.scale = 30;
  const PairsResult want = PairsReference(p);
  Call call(p);
  cuda::Forward(call.grads.forward, nullptr);
  const Values out = call.out.Get();
  for (size_t i = 0; i < out.size(); ++i)
    // Scores of hundreds carry fp32's rounding into the weights: 2^-24 of 1,000 is 6e-5.
    ASSERT_NEAR(out[i], want.out.value[i], want.out.bound[i] / 256 + 2e-3) << i;
}

// A query that sees no key, because all its keys are in an earlier slice, has zero output and
// gradients.
TEST(CudaSoftmaxAttention, AQueryThatSeesNothing) {
  PairsProblem p = MakeProblem({.seq_len = 66, .dim = 16, .dim_v = 8});
  for (const int t : {0, 5, 65}) p.first[t] = p.end[t] = 3;
  Call call(p);
  cuda::Forward(call.grads.forward, nullptr);
  cuda::Backward(call.grads, nullptr);
  for (const int t : {0, 5, 65}) {
    for (int j = 0; j < p.dim_v; ++j) EXPECT_EQ(call.out.Get()[t * p.dim_v + j], 0) << t;
    for (int c = 0; c < p.dim; ++c) EXPECT_EQ(call.dq.Get()[t * p.dim + c], 0) << t;
    EXPECT_EQ(call.log_sum[t], -INFINITY) << t;
  }
  for (const double x : call.dk.Get()) EXPECT_TRUE(std::isfinite(x));
}

constexpr int64_t kHopper = 227 << 10, kSmall = 99 << 10;  // Shared memory of sm_90, sm_120.

TEST(CudaSoftmaxAttention, SaysWhyNot) {
  const PairsProblem p = MakeProblem({.seq_len = 70, .dim = 128, .dim_v = 128});
  const Call call(p);
  const SoftmaxAttentionArgs& takes = call.grads.forward;
  EXPECT_EQ(cuda::WhyNot(takes, kHopper), "");
  const auto why = [&](const auto& change, int64_t shared_memory_bytes = kHopper) {
    SoftmaxAttentionArgs args = takes;
    change(args);
    return cuda::WhyNot(args, shared_memory_bytes);
  };
  using Args = SoftmaxAttentionArgs;
  const double rate = -0.01;
  EXPECT_EQ(why([](Args& x) { x.q.dtype = DType::kF32; }), "fp32, not bf16");
  EXPECT_EQ(why([](Args& x) { x.far_from = 3; }), "far pairs of their own");
  EXPECT_EQ(why([&](Args& x) { x.decay_rates = &rate; }), "decay with distance");
  EXPECT_EQ(why([](Args& x) { x.head_dim = 136; }), "heads of 136 channels, more than 128");
  EXPECT_EQ(why([](Args& x) { x.num_queries = 15; }), "15 queries, less than 16");
  EXPECT_EQ(why([](Args&) {}, kSmall),
            "blocks of 102400 bytes of shared memory, of which the device has 101376");
  EXPECT_EQ(why([](Args& x) { x.head_dim = x.head_dim_v = 64; }, kSmall), "");
}

TEST(CudaSoftmaxAttention, RefusesWhatItDoesNotTake) {
  const PairsProblem p = MakeProblem({.seq_len = 1});
  Call call(p);
  call.grads.forward.head_dim = 136;
  EXPECT_HL_ERROR(cuda::Forward(call.grads.forward, nullptr), ExitCode::kInternal,
                  "heads of 136 channels", "at most 128 channels");
  call.grads.forward.head_dim = 16, call.grads.workspace = nullptr;
  EXPECT_HL_ERROR(cuda::Backward(call.grads, nullptr), ExitCode::kInternal,
                  "bytes of workspace, got none");
}

}  // namespace
}  // namespace halflife::kernels
