// Softmax attention equals loops over pairs that implement its definition, and LibTorch's
// gradients.
#include "ops/softmax_attention/softmax_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "kernels/softmax_attention/problem.h"
#include "ops/gradient_check.h"
#include "ops/random_tensors.h"
#include "ops/softmax_attention/composed.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using namespace test;
using namespace attention_test;

bool Sees(const ops::KeyPattern& pattern, int64_t query,
          int64_t key) {  // Positions within one document.
  if (key > query && !pattern.bidirectional) return false;
  if (key < pattern.sinks) return true;
  if (pattern.block > 0) return query / pattern.block - key / pattern.block <= 1;
  return pattern.window == 0 || std::abs(query - key) < pattern.window;
}
// Returns the end (exclusive) of the document of query t.
int64_t DocumentEnd(const at::Tensor& positions, int64_t b, int64_t t, int64_t num_past) {
  const auto of = positions.accessor<int64_t, 2>()[b];
  int64_t end = t + 1;
  while (end < positions.size(1) && of[end] != 0) ++end;
  return num_past + end;
}

// Returns the dropout factor of a key's weight. Keys are counted from the start of the row.
double Kept(const ops::DropoutConfig& dropout, int64_t b, int64_t h, int64_t place, int64_t key) {
  if (dropout.rate == 0) return 1;
  const auto sample = static_cast<uint64_t>(dropout.samples[b].item<int64_t>());
  const auto words = Draw(dropout.key, sample + (static_cast<uint64_t>(h) << 48),
                          static_cast<uint32_t>(place), static_cast<uint32_t>(key / 4));
  return ToUniform(words.x[key % 4]) < dropout.rate ? 0 : 1 / (1 - dropout.rate);
}

// Computes one query by definition, in fp64.
void AttendByLoops(const Problem& p, int64_t b, int64_t t, int64_t h, double* out) {
  const ops::SoftmaxAttentionInputs& in = p.in;
  const int64_t num_past = in.k.size(1) - in.q.size(1), place = num_past + t;
  const int64_t position = in.positions[b][t].item<int64_t>();
  const int64_t kv = h / (in.q.size(2) / in.k.size(2)), dim = in.q.size(3);
  const auto values = in.v.accessor<double, 4>();
  std::vector<double> weights;
  double sum = 0;
  const int64_t first = std::max<int64_t>(0, place - position);
  const int64_t end = DocumentEnd(in.positions, b, t, num_past);
  double num_seen = 0;
  for (int64_t key = first; key < end; ++key) {
    const int64_t distance = place - key;
    weights.push_back(0);
    if (!Sees(p.config.pattern, position, position - distance)) continue;
    const bool far = in.far_q.defined() && distance >= p.config.far_from;
    const auto q = (far ? in.far_q : in.q).accessor<double, 4>()[b][t][h];
    const auto k = (far && in.far_k.defined() ? in.far_k : in.k).accessor<double, 4>()[b][key][kv];
    double score = 0;
    for (int64_t c = 0; c < dim; ++c) {
      const double rate = p.config.decay_rates.empty() ? 0 : p.config.decay_rates[c];
      score += q[c] * k[c] * std::exp(rate * static_cast<double>(distance));
    }
    score *= p.config.scale;
    const double bias_scale =
        in.bias_scale.defined() ? in.bias_scale.accessor<double, 2>()[b][t] : 1;
    if (in.bias.defined())
      score += bias_scale * in.bias.accessor<double, 2>()[h][std::abs(distance)];
    const double positive = std::max(score, 0.0);
    weights.back() = p.config.squared_relu ? positive * positive : std::exp(score);
    sum += weights.back();
    num_seen += 1;
  }
  if (p.config.squared_relu) sum = num_seen;
  for (int64_t j = 0; j < in.v.size(3); ++j) {
    out[j] = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t key = first + static_cast<int64_t>(i);
      out[j] += weights[i] * Kept(p.config.dropout, b, h, place, key) / sum * values[b][key][kv][j];
    }
  }
}
at::Tensor ByLoops(const Problem& p) {
  const at::Tensor &q = p.in.q, &v = p.in.v;
  at::Tensor out = at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, at::kDouble);
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t t = 0; t < q.size(1); ++t)
      for (int64_t h = 0; h < q.size(2); ++h)
        AttendByLoops(p, b, t, h, out[b][t][h].mutable_data_ptr<double>());
  return out;
}

// fp64 differs only by rounding, fp32 by the rounding of scores (about 1e-6 for values near 1),
// bf16 by that of its operands, 2^-9 each.
TEST(SoftmaxAttention, IsTheDefinition) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    const Problem p = MakeProblem(shape, 1);
    const at::Tensor want = ByLoops(p);
    EXPECT_TRUE(Close(p.Out(), want, 1e-13));
    EXPECT_TRUE(Close(p.Out(at::kFloat), want, 5e-6));
    EXPECT_TRUE(Close(p.Out(at::kBFloat16), want, 2e-2));
    EXPECT_TRUE(Close(ops::ComposedSoftmaxAttention(p.in, p.config), want, 1e-13));
  }
}

std::vector<at::Tensor> Gradients(const Problem& p, bool composed) {
  Problem leaf = p;
  std::vector<at::Tensor> leaves;
  for (at::Tensor* x :
       {&leaf.in.q, &leaf.in.k, &leaf.in.v, &leaf.in.far_q, &leaf.in.far_k, &leaf.in.bias})
    if (x->defined()) leaves.push_back(*x = x->detach().clone().requires_grad_());
  const at::Tensor out = composed ? ops::ComposedSoftmaxAttention(leaf.in, leaf.config)
                                  : ops::SoftmaxAttention(leaf.in, leaf.config);
  const at::Tensor weight = Normal(out.sizes().vec(), 77, out.scalar_type());
  return torch::autograd::grad({(out * weight).sum()}, leaves);
}

TEST(SoftmaxAttention, GradientsAreAutograds) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    const Problem p = MakeProblem(shape, 2);
    const auto got = Gradients(p, false), single = Gradients(p.To(at::kFloat), false);
    const auto want = Gradients(p, true);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(Close(got[i], want[i], 1e-12)) << "input " << i;
      EXPECT_TRUE(Close(single[i], want[i], 2e-5)) << "input " << i;
    }
  }
}

TEST(SoftmaxAttention, GradientsAreDifferences) {
  const Problem p = MakeProblem({.batch = 1,
                                 .seq_len = 67,
                                 .kv_heads = 1,
                                 .dim = 3,
                                 .dim_v = 2,
                                 .pattern = {.window = 9},
                                 .bias = true,
                                 .far_from = 4,
                                 .own_far_keys = true},
                                3);
  const auto loss = [&](const std::vector<at::Tensor>& x) {
    ops::SoftmaxAttentionInputs in = p.in;
    in.q = x[0], in.k = x[1], in.v = x[2], in.far_q = x[3], in.far_k = x[4], in.bias = x[5];
    const at::Tensor out = ops::SoftmaxAttention(in, p.config);
    return (out * Normal(out.sizes().vec(), 4)).sum();
  };
  ExpectFiniteDifferences(loss, {p.in.q, p.in.k, p.in.v, p.in.far_q, p.in.far_k, p.in.bias}, 1e-6,
                          5);
}

// A distance ahead and the same distance back share one bias.
TEST(SoftmaxAttention, GradientsOfABiasBothWaysAreDifferences) {
  const Problem p = MakeProblem({.batch = 1,
                                 .seq_len = 67,
                                 .dim = 3,
                                 .dim_v = 2,
                                 .pattern = {.bidirectional = true},
                                 .bias = true,
                                 .starts = {0, 20}},
                                3);
  const auto loss = [&](const std::vector<at::Tensor>& x) {
    ops::SoftmaxAttentionInputs in = p.in;
    in.q = x[0], in.k = x[1], in.v = x[2], in.bias = x[3];
    const at::Tensor out = ops::SoftmaxAttention(in, p.config);
    return (out * Normal(out.sizes().vec(), 4)).sum();
  };
  ExpectFiniteDifferences(loss, {p.in.q, p.in.k, p.in.v, p.in.bias}, 1e-6, 5);
}

// This includes NaN: it affects later tokens of its document within the pattern, and no others.
TEST(SoftmaxAttention, TokensChangeNoBitOfWhoDoesNotSeeThem) {
  for (const Shape& shape :
       {Shape{.seq_len = 150, .starts = {0, 100}}, Shape{.seq_len = 150, .pattern = {.window = 40}},
        Shape{.seq_len = 150, .pattern = {.block = 20, .sinks = 2}},
        Shape{.seq_len = 150, .pattern = {.window = 40, .bidirectional = true}, .starts = {0, 100}},
        Shape{.seq_len = 150, .squared_relu = true, .starts = {0, 100}}}) {
    const Problem p = MakeProblem(shape, 5);
    const at::Tensor before = p.Out(at::kFloat);
    for (const int64_t token : {0, 1, 31, 64, 99, 149})
      for (const double value : {3.0, std::numeric_limits<double>::quiet_NaN()}) {
        Problem changed = p;
        for (at::Tensor* x : {&changed.in.k, &changed.in.v}) {
          *x = x->clone();
          x->select(1, token).fill_(value);
        }
        const at::Tensor after = changed.Out(at::kFloat);
        for (int64_t t = 0; t < shape.seq_len; ++t) {
          const int64_t position = p.in.positions[0][t].item<int64_t>();
          const int64_t of_key = position - (t - token);
          const bool sees = of_key >= 0 && token < DocumentEnd(p.in.positions, 0, t, 0) &&
                            Sees(shape.pattern, position, of_key);
          if (sees && shape.squared_relu) continue;  // A negative score may have no effect.
          EXPECT_EQ(BitEqual(after[0][t], before[0][t]), !sees) << token << " heard by " << t;
        }
      }
  }
}

// The results do not depend on how the tokens arrive: all at once, in parts after earlier tokens,
// or one by one, which uses a separate kernel.
TEST(SoftmaxAttention, PiecesAndSingleQueriesAreTheWhole) {
  for (const Shape& shape : kShapes) {
    if (shape.num_past > 0 || shape.pattern.bidirectional) continue;
    SCOPED_TRACE(shape.name);
    const Problem p = MakeProblem(shape, 6);
    const at::Tensor whole = p.Out();
    const auto part = [&](int64_t begin, int64_t end) {
      Problem piece = p;
      const auto queries = [&](const at::Tensor& x) { return x.narrow(1, begin, end - begin); };
      piece.in.q = queries(p.in.q), piece.in.positions = queries(p.in.positions);
      if (p.in.far_q.defined()) piece.in.far_q = queries(p.in.far_q);
      if (p.in.bias_scale.defined()) piece.in.bias_scale = queries(p.in.bias_scale);
      piece.in.k = p.in.k.narrow(1, 0, end), piece.in.v = p.in.v.narrow(1, 0, end);
      if (p.in.far_k.defined()) piece.in.far_k = p.in.far_k.narrow(1, 0, end);
      piece.config.dropout.first_position = begin;
      return piece.Out();
    };
    for (const int64_t cut : {int64_t{1}, shape.seq_len / 2}) {
      if (cut == 0 || cut >= shape.seq_len) continue;
      EXPECT_TRUE(Close(at::cat({part(0, cut), part(cut, shape.seq_len)}, 1), whole, 1e-13)) << cut;
    }
    for (int64_t t = 0; t < shape.seq_len; t += 7)
      EXPECT_TRUE(Close(part(t, t + 1), whole.narrow(1, t, 1), 1e-13)) << t;
  }
}

TEST(SoftmaxAttention, ThreadsChangeNoBit) {
  const Problem p =
      MakeProblem({.batch = 1, .seq_len = 300, .heads = 1, .kv_heads = 1, .dropout = 0.1}, 7);
  const at::Tensor out = p.Out(at::kFloat);
  const auto grads = Gradients(p.To(at::kFloat), false);
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 3 : 1);
  EXPECT_TRUE(BitEqual(p.Out(at::kFloat), out));
  const auto again = Gradients(p.To(at::kFloat), false);
  at::set_num_threads(threads);
  for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(BitEqual(again[i], grads[i])) << i;
}

TEST(SoftmaxAttention, AWindowOfOneGivesTheValuesBack) {
  const Problem p = MakeProblem({.pattern = {.window = 1}}, 8);
  EXPECT_TRUE(BitEqual(p.Out(at::kFloat), p.in.v.to(at::kFloat)));
}

// The ratio of two weights on a diagonal, at a distance at which separate factors would overflow
// fp32: e^(-0.0245 * 20000) and its reciprocal.
TEST(SoftmaxAttention, DecaysAreFiniteAtAnyLength) {
  Shape shape = {.batch = 1,
                 .seq_len = 20000,
                 .heads = 1,
                 .kv_heads = 1,
                 .dim = 4,
                 .dim_v = 2,
                 .pattern = {.window = 100}};
  Problem p = MakeProblem(shape, 9);
  p.config.decay_rates = {-0.0245, -0.01, 0, -0.0001};
  const at::Tensor out = p.Out(at::kFloat);
  EXPECT_TRUE(out.isfinite().all().item<bool>());
  EXPECT_TRUE(Close(out, p.Out(), 5e-6));
  p.config.pattern = {};
  p.in.q = p.in.q.narrow(1, 19999, 1), p.in.positions = p.in.positions.narrow(1, 19999, 1);
  EXPECT_TRUE(Close(p.Out(at::kFloat), ByLoops(p), 5e-6));
}

// Required test 4: 131,072 bf16 keys, whose separate factors would be e^(321) at the fastest rate.
TEST(SoftmaxAttention, DecaysOverAHundredThousandKeysInBf16) {
  Problem p = MakeProblem({.batch = 1,
                           .seq_len = 2,
                           .num_past = 131070,
                           .heads = 1,
                           .kv_heads = 1,
                           .dim = 4,
                           .dim_v = 2},
                          12);
  p.config.decay_rates = {-2.4468027e-3, -1e-3, -2.4468027e-3, -1e-3};
  const at::Tensor want = ByLoops(p);
  EXPECT_TRUE(Close(p.Out(at::kFloat), want, 5e-6));
  EXPECT_TRUE(Close(p.Out(at::kBFloat16), want, 2e-2));
}

// Required test 4: queries and keys with separate factors relative to a centre of their own, in
// fp64, which does not overflow with 4,096 tokens. Compares the last 80 queries of the row.
TEST(SoftmaxAttention, DecaysAreFactorsOfQueriesAndKeys) {
  Problem p = MakeProblem({.batch = 1, .seq_len = 80, .num_past = 4016, .kv_heads = 1}, 14);
  for (int64_t c = 0; c < 8; ++c)  // The rates of xPos, with halves as pairs.
    p.config.decay_rates.push_back(std::log((static_cast<double>(c % 4) / 4 + 0.4) / 1.4) / 512);
  const at::Tensor rates = at::tensor(p.config.decay_rates, at::kDouble);
  for (const double centre : {0.0, 2048.0, 4096.0}) {
    SCOPED_TRACE(centre);
    Problem encoded = p;
    encoded.config.decay_rates.clear();
    const auto factors = [&](int64_t first, int64_t count, double sign) {
      const at::Tensor place = at::arange(first, first + count, at::kDouble) - centre;
      return (sign * place.unsqueeze(1) * rates).exp().unsqueeze(1);  // [tokens, 1, d]
    };
    encoded.in.q = p.in.q * factors(4016, 80, +1);
    encoded.in.k = p.in.k * factors(0, 4096, -1);
    EXPECT_TRUE(Close(p.Out(), encoded.Out(), 1e-12));
    EXPECT_TRUE(Close(p.Out(at::kFloat), encoded.Out(), 5e-6));
  }
}

// The fastest possible decay, over several tiles and blocks: factors that are computed separately
// stay within fp32, also in LibTorch's operators.
TEST(SoftmaxAttention, FastestDecaysAreFinite) {
  Problem p = MakeProblem(
      {.batch = 1, .seq_len = 700, .heads = 1, .kv_heads = 1, .dim = 4, .dropout = 0.1}, 16);
  p.config.decay_rates = {ops::kFastestDecay, -0.07, -0.0001, ops::kFastestDecay};
  const at::Tensor want = ByLoops(p);
  EXPECT_TRUE(Close(p.Out(), want, 1e-12));
  EXPECT_TRUE(Close(p.Out(at::kFloat), want, 5e-6));
  const Problem single = p.To(at::kFloat);
  EXPECT_TRUE(Close(ops::ComposedSoftmaxAttention(single.in, single.config), want, 5e-6));
}

// Required test 5: if queries and keys are equal and not rotated, weights decrease with the
// distance at exactly the pair's rate.
TEST(SoftmaxAttention, DecaysFallWithTheDistance) {
  Problem p = MakeProblem({.batch = 1, .seq_len = 300, .heads = 1, .kv_heads = 1, .dim = 1}, 15);
  p.in.q = at::ones_like(p.in.q), p.in.k = at::ones_like(p.in.k);
  p.config = {.scale = 3, .decay_rates = {-2.4468027e-3}};
  p.in.v = at::eye(300, at::kDouble).view({1, 300, 1, 300});  // Makes the weights visible.
  const at::Tensor weights = p.Out()[0][299][0].flip(0);      // By distance.
  EXPECT_TRUE((weights.diff() < 0).all().item<bool>());
  const at::Tensor distance = at::arange(300, at::kDouble);
  const at::Tensor want = 3 * (at::exp(-2.4468027e-3 * distance) - 1);
  EXPECT_TRUE(Close((weights / weights[0]).log(), want, 1e-12));
}

// Required tests 6 and 8: blocks of 16 in rows with every remainder. Up to two blocks, and with a
// window of the whole row, all earlier keys are visible.
TEST(SoftmaxAttention, BlocksAndWindowsOfEveryRemainder) {
  constexpr int64_t kBlock = 16;
  for (const int64_t seq_len : {int64_t{1}, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock,
                                2 * kBlock + 1, 5 * kBlock, 5 * kBlock + 3}) {
    SCOPED_TRACE(seq_len);
    Problem p = MakeProblem({.seq_len = seq_len}, 13);
    const at::Tensor causal = p.Out();
    const auto causal_grads = Gradients(p, false);
    p.config.pattern = {.window = seq_len};
    EXPECT_TRUE(Close(p.Out(), causal, 1e-13));
    p.config.pattern = {.block = kBlock};
    EXPECT_TRUE(Close(p.Out(), ByLoops(p), 1e-13));
    const auto grads = Gradients(p, false), composed = Gradients(p, true);
    for (size_t i = 0; i < grads.size(); ++i) {
      EXPECT_TRUE(Close(grads[i], composed[i], 1e-12)) << "input " << i;
      if (seq_len > 2 * kBlock) continue;
      EXPECT_TRUE(Close(grads[i], causal_grads[i], 1e-12)) << "input " << i;
    }
    EXPECT_EQ(Close(p.Out(), causal, 1e-13), seq_len <= 2 * kBlock);
  }
}

TEST(SoftmaxAttention, NoTokensOrRows) {
  for (const Shape& shape :
       {Shape{.seq_len = 0, .num_past = 3}, Shape{.batch = 0},
        Shape{.seq_len = 0, .num_past = 3, .far_from = 2, .own_far_keys = true}}) {
    const Problem p = MakeProblem(shape, 10);
    EXPECT_EQ(p.Out().numel(), 0);
    for (const at::Tensor& grad : Gradients(p, false))
      EXPECT_EQ(grad.count_nonzero().item<int64_t>(), 0);
  }
}

TEST(SoftmaxAttention, SaysWhatDoesNotFit) {
  const Problem p = MakeProblem({}, 11);
  const auto with = [&](auto change) {
    Problem other = p;
    change(other);
    return other.Out();
  };
  EXPECT_HL_ERROR(with([](Problem& x) { x.in.k = x.in.k.narrow(1, 0, 5); }), ExitCode::kInternal,
                  "[2, 5, 2, 8]", "S >= T");
  EXPECT_HL_ERROR(with([](Problem& x) { x.config.pattern = {.window = 3, .block = 4}; }),
                  ExitCode::kInternal, "window 3 and block 4");
  EXPECT_HL_ERROR(with([](Problem& x) {
                    x.config.pattern = {.bidirectional = true};
                    x.config.far_from = 3, x.in.far_q = x.in.q;
                  }),
                  ExitCode::kInternal, "a bidirectional pattern", "without blocks, far_q");
  EXPECT_HL_ERROR(with([](Problem& x) { x.config.decay_rates = {-1.0}; }), ExitCode::kInternal,
                  "1 decay rates for heads of 8");
  EXPECT_HL_ERROR(with([](Problem& x) { x.config.decay_rates = std::vector<double>(8, -0.2); }),
                  ExitCode::kInternal, "one rate per channel, from -0.1 to 0");
  EXPECT_HL_ERROR(
      with([](Problem& x) { x.config.dropout = {.rate = 0.1, .samples = at::arange(3)}; }),
      ExitCode::kInternal, "dropout over 2 rows", "got [3] int64");
  EXPECT_HL_ERROR(with([](Problem& x) {
                    x.config.dropout = {.rate = 0.1, .samples = at::arange(2), .first_position = 7};
                  }),
                  ExitCode::kInternal, "dropout first_position is 7, but there are 0 past keys",
                  "Set first_position to the number of past keys");
  EXPECT_HL_ERROR(with([](Problem& x) {
                    x.in.bias = Normal({2, 3}, 1);
                  }),
                  ExitCode::kInternal, "bias [2, 3]", "[2, at least 70]");
  EXPECT_HL_ERROR(with([](Problem& x) {
                    x.in.bias_scale = Normal({2, 70}, 1);
                  }),
                  ExitCode::kInternal, "bias_scale [2, 70]", "[2, 70] of fp64, with a bias");
}

}  // namespace
}  // namespace halflife::kernels
