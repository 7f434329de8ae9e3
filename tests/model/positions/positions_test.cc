// The position methods of attention: golden values of the papers' formulas, special cases in which
// a method has no effect, and errors. Slices, ranks and decoding are covered by
// mixer_conformance_test.cc.
#include "model/positions/positions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "model/language_model.h"
#include "model/mixers/built_mixer.h"
#include "model/positions/attention_positions.h"
#include "model/positions/rotary_variants.h"
#include "ops/random_tensors.h"
#include "ops/rows/rotary.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

class Method {
 public:
  explicit Method(const PositionsConfig& config, int64_t head_dim = 4, int64_t num_heads = 1,
                  double rope_theta = 10000) {
    const PartContext context = {.sizes = {.model_dim = head_dim * num_heads, .num_layers = 1},
                                 .parameters = &parameters_};
    positions_ = MakePositions(config, context);
    method_ = positions_->OfLayer(
        {.part = context, .num_heads = num_heads, .head_dim = head_dim, .rope_theta = rope_theta});
  }
  const AttentionPositions* operator->() const { return method_.get(); }

  // Returns the score of q at m and k at n, [d] each, without the scale of 1/sqrt(d). q and k are
  // encoded in their dtype, and the products are summed in fp64.
  double Score(const at::Tensor& q, const at::Tensor& k, int64_t m, int64_t n) const {
    const AttentionHeads of_q = Encoded(q, m), of_k = Encoded(k, n);
    const int64_t far_from = method_->far_from();
    if (far_from > 0 && m - n >= far_from)
      return (of_q.far_q * (method_->has_far_keys() ? of_k.far_k : of_k.k)).sum().item<double>();
    at::Tensor product = of_q.q.to(at::kDouble) * of_k.k.to(at::kDouble);
    if (const std::vector<double> rates = method_->decay_rates(); !rates.empty())
      product = product * at::exp(at::tensor(rates, at::kDouble) * static_cast<double>(m - n));
    return product.sum().item<double>();
  }

 private:
  AttentionHeads Encoded(const at::Tensor& x, int64_t position) const {
    AttentionHeads heads = {.q = x.view({1, 1, 1, -1}), .k = x.view({1, 1, 1, -1})};
    ops::RotaryTables tables;
    method_->Encode(heads, at::full({1, 1}, position, at::kLong), tables);
    return heads;
  }
  ParameterSet parameters_;
  std::unique_ptr<Positions> positions_;
  std::unique_ptr<AttentionPositions> method_;
};

// Pairs are the two halves here. They correspond to neighbours (1, 2), (3, 4) and (.5, -1), (2,
// .25), which were calculated by hand.
at::Tensor GoldenQ() { return at::tensor({1.0, 3.0, 2.0, 4.0}, at::kDouble); }
at::Tensor GoldenK() { return at::tensor({0.5, 2.0, -1.0, 0.25}, at::kDouble); }
TEST(Xpos, GoldenScores) {
  const Method xpos(PositionsConfig("xpos"));
  EXPECT_NEAR(xpos.Score(GoldenQ(), GoldenK(), 7, 3), 9.151154823, 1e-9);
  EXPECT_NEAR(xpos.Score(GoldenQ(), GoldenK(), 1000, 0), -1.030211620, 1e-9);
  EXPECT_NEAR(xpos.Score(GoldenQ(), GoldenK(), 12, 12), 5.5, 1e-12);
  const Method rope(PositionsConfig("interpolated"));
  EXPECT_NEAR(rope.Score(GoldenQ(), GoldenK(), 7, 3), 9.198548496, 1e-9);
  EXPECT_NEAR(rope.Score(GoldenQ(), GoldenK(), 1000, 0), -4.426675345, 1e-9);
}

// The paper pairs neighbouring channels and sums the two products of a pair, with cos and sin of
// the distance and the pair's decay. The mixer's halves are the same pairs in a different order.
TEST(Xpos, IsThePapersFormOnNeighbours) {
  constexpr int64_t kWidth = 16, kPairs = kWidth / 2;
  const Method xpos(PositionsConfig("xpos"), kWidth);
  const at::Tensor q = Normal({kWidth}, 16), k = Normal({kWidth}, 17);  // Pairs of neighbours.
  const auto halves = [](const at::Tensor& x) { return x.view({kPairs, 2}).t().flatten(); };
  const auto a = q.accessor<double, 1>(), b = k.accessor<double, 1>();
  for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{{5, 5}, {90, 3}, {4096, 0}}) {
    const auto distance = static_cast<double>(m - n);
    double want = 0;
    for (int64_t i = 0; i < kPairs; ++i) {
      const double share = static_cast<double>(i) / kPairs,
                   rate = std::log((share + 0.4) / 1.4) / 512,
                   angle = distance * std::pow(10000.0, -share);
      want += std::exp(rate * distance) *
              ((a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1]) * std::cos(angle) +
               (a[2 * i] * b[2 * i + 1] - a[2 * i + 1] * b[2 * i]) * std::sin(angle));
    }
    EXPECT_NEAR(xpos.Score(halves(q), halves(k), m, n), want, 1e-11) << m << ", " << n;
  }
}

// Scores depend only on the distance: in fp64 up to the rounding of angles, 1e5 x 2^-53 per pair,
// and in fp32 with tables that are computed in fp64.
TEST(Xpos, TranslationChangesNoScore) {
  const Method xpos(PositionsConfig("xpos"), 64);
  for (const uint64_t seed : {6, 16, 26}) {
    const at::Tensor q = Normal({64}, seed), k = Normal({64}, seed + 1);
    const auto score = [&](at::ScalarType dtype, int64_t shift) {
      return xpos.Score(q.to(dtype), k.to(dtype), 40 + shift, 3 + shift) / 8;  // sqrt(64)
    };
    for (const int64_t shift : {1, 1000, 9999, 100'000}) {
      EXPECT_NEAR(score(at::kDouble, shift), score(at::kDouble, 0), 1e-9) << shift;
      EXPECT_NEAR(score(at::kFloat, shift), score(at::kFloat, 0), 1e-5) << shift;
    }
  }
}

// Without a decay it has the same bits as the plain rotation.
TEST(Xpos, WithoutADecayIsRotation) {
  const MixerConfig softmax("softmax", {{"num_heads", int64_t{2}}});
  const auto run = [&](const PositionsConfig& positions) {
    return BuiltMixer(softmax, 16, at::kFloat, 0.3, {.positions = positions})
        .Run(Normal({2, 90, 16}, 8, at::kFloat));
  };
  EXPECT_TRUE(
      test::BitEqual(run(PositionsConfig("xpos", {{"scale_base", 1e30}})), run(PositionsConfig())));
  EXPECT_FALSE(test::BitEqual(run(PositionsConfig("xpos")), run(PositionsConfig())));
}

// ln(2/7) / 512 for the pair that rotates fastest. The two halves of a pair are equal.
TEST(Xpos, Rates) {
  const std::vector<double> rates = Method(PositionsConfig("xpos"), 64)->decay_rates();
  EXPECT_NEAR(rates[0], -2.4468027e-3, 1e-9);
  EXPECT_NEAR(std::exp(512 * rates[31]), 0.977679, 1e-6);
  EXPECT_EQ(rates[32], rates[0]);
  // Property 5: with equal queries and keys that are not rotated, scores decrease with the
  // distance.
  EXPECT_LT(*std::ranges::max_element(rates), 0);
}

TEST(Alibi, Slopes) {
  const auto exponents = [](int64_t heads) {
    std::vector<double> x;
    for (const double slope : AlibiSlopes(heads))  // Powers of 1/2 with whole exponents.
      x.push_back(std::round(-std::log2(slope) * 1e9) / 1e9);
    return x;
  };
  using List = std::vector<double>;
  EXPECT_EQ(exponents(1), (List{8}));
  EXPECT_EQ(exponents(2), (List{4, 8}));
  EXPECT_EQ(exponents(4), (List{2, 4, 6, 8}));
  EXPECT_EQ(exponents(3), (List{4, 8, 2}));
  EXPECT_EQ(exponents(6), (List{2, 4, 6, 8, 1, 3}));
  EXPECT_EQ(exponents(8), (List{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(exponents(12), (List{1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5}));
  EXPECT_EQ(exponents(16), (List{0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5, 8}));
  const List of_20 = exponents(20), of_25 = exponents(25), of_32 = exponents(32);
  EXPECT_EQ(List(of_20.begin(), of_20.begin() + 16), exponents(16));
  EXPECT_EQ(List(of_20.begin() + 16, of_20.end()), (List{0.25, 0.75, 1.25, 1.75}));
  EXPECT_EQ(List(of_25.begin() + 16, of_25.end()),
            (List{0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4.25}));
  for (size_t head = 0; head < 32; ++head)
    EXPECT_EQ(of_32[head], 0.25 * static_cast<double>(head + 1));
}

TEST(Alibi, BiasIsTheSlopeTimesTheDistance) {
  const at::Tensor bias = Method(PositionsConfig("alibi"), 4, 2)->Bias(5000, at::kFloat);
  EXPECT_EQ(bias[0][0].item<float>(), 0);
  // Near tokens remain distinguishable at any length.
  EXPECT_EQ(bias[0][4095].item<float>(), -4095.0F / 16);
  EXPECT_EQ(bias[0][4094].item<float>() - bias[0][4095].item<float>(), 1.0F / 16);
}

// A slope factor of 0 means no positions, and half the slopes give half the bias.
TEST(Alibi, SlopesOfNothingAreNoPositions) {
  const MixerConfig softmax("softmax", {{"num_heads", int64_t{2}}, {"rope_theta", 0.0}});
  const at::Tensor x = Normal({2, 90, 16}, 8, at::kFloat);
  const auto run = [&](const PositionsConfig& positions) {
    return BuiltMixer(softmax, 16, at::kFloat, 0.3, {.positions = positions}).Run(x);
  };
  EXPECT_TRUE(test::BitEqual(run(PositionsConfig("alibi", {{"slope_scale", 0.0}})),
                             run(PositionsConfig("none"))));
  EXPECT_FALSE(Close(run(PositionsConfig("alibi")), run(PositionsConfig("none")), 1e-2));
  const auto bias = [](double scale) {
    return Method(PositionsConfig("alibi", {{"slope_scale", scale}}), 4, 2)->Bias(90, at::kDouble);
  };
  EXPECT_TRUE(test::BitEqual(bias(0.5) * 2, bias(1)));
}

// The first distance of each of 32 buckets, up to 128.
TEST(T5, Buckets) {
  const std::vector<int64_t> buckets = T5Buckets(1000001, 32, 128);
  const std::vector<int64_t> begins = {16, 19, 21, 24, 27, 31, 35, 40,
                                       46, 52, 59, 67, 77, 87, 99, 113};
  for (int64_t n = 0; n < 16; ++n) EXPECT_EQ(buckets[n], n);
  for (size_t i = 0; i < begins.size(); ++i) {
    EXPECT_EQ(buckets[begins[i]], static_cast<int64_t>(16 + i)) << begins[i];
    EXPECT_EQ(buckets[begins[i] - 1], static_cast<int64_t>(15 + i)) << begins[i];
  }
  for (const int64_t n : {127, 128, 1000000}) EXPECT_EQ(buckets[n], 31);
}

TEST(Yarn, RampAndFactor) {
  const YarnConfig config = {.factor = 64, .length = 64};
  const YarnRamp ramp = YarnRampOf(128, 10000, config);
  EXPECT_EQ(ramp.first, 0);
  EXPECT_EQ(ramp.last, 17);
  EXPECT_NEAR(YarnFactor(64), 1.415888, 1e-6);
  const std::vector<double> yarn = YarnFrequencies(128, 10000, config),
                            usual = ops::RotaryFrequencies(128, 10000);
  EXPECT_EQ(yarn[0], usual[0]);
  EXPECT_DOUBLE_EQ(yarn[17], usual[17] / 64);
  EXPECT_DOUBLE_EQ(yarn[63], usual[63] / 64);
}

// Frequencies of a head of 16 channels with theta 10000, for texts of 4 times 64 tokens.
TEST(Yarn, GoldenFrequencies) {
  const std::vector<double> want = {1,      0.237170825, 0.05,    0.007905694,
                                    0.0025, 0.000790569, 0.00025, 0.000079057};
  const std::vector<double> yarn = YarnFrequencies(16, 10000, {.factor = 4, .length = 64});
  ASSERT_EQ(yarn.size(), want.size());
  for (size_t pair = 0; pair < want.size(); ++pair) EXPECT_NEAR(yarn[pair], want[pair], 1e-9);
  EXPECT_NEAR(YarnFactor(4), 1.138629436, 1e-9);
}

// Without truncation the ramp begins at pair -0.994 (limited to 0) and ends at pair 2.016, which
// are 16 ln(64 / (2 pi turns)) / (2 ln 10000) for 32 turns and 1 turn.
TEST(Yarn, ARampBetweenPairs) {
  const YarnConfig config = {.factor = 4, .length = 64, .truncate = false};
  const YarnRamp ramp = YarnRampOf(16, 10000, config);
  EXPECT_EQ(ramp.first, 0);
  EXPECT_NEAR(ramp.last, 2.016000, 1e-6);
  const std::vector<double> usual = ops::RotaryFrequencies(16, 10000);
  EXPECT_NEAR(YarnFrequencies(16, 10000, config)[1], usual[1] * (1 - 0.75 / ramp.last), 1e-15);
}

// Heads are multiplied by attention_factor, and scores by its square.
TEST(Yarn, AFactorOfItsOwn) {
  const at::Tensor q = Normal({8}, 1), k = Normal({8}, 2);
  const auto score = [&](double attention_factor) {
    const PositionsConfig config("yarn", {{"factor", 4.0}, {"attention_factor", attention_factor}});
    return Method(config, 8).Score(q, k, 41, 3);
  };
  EXPECT_NEAR(score(3) / score(1), 9, 1e-12);
  EXPECT_NEAR(score(0) / score(1), YarnFactor(4) * YarnFactor(4), 1e-12);
}

// Frequencies of a head of 16 channels with theta 500000, for texts of 8 times 64 tokens.
TEST(Llama3, GoldenFrequencies) {
  const std::vector<double> llama3 = Llama3Frequencies(16, 500000, {.factor = 8, .length = 64});
  ASSERT_EQ(llama3.size(), 8U);
  EXPECT_EQ(llama3[0], 1);
  EXPECT_NEAR(llama3[1], 0.079403009, 1e-9);
  EXPECT_NEAR(llama3[2], 0.004700754, 1e-9);
  EXPECT_NEAR(llama3[3], 0.000911583, 1e-9);
  EXPECT_NEAR(llama3[7], 0.000001289, 1e-9);
}

TEST(NtkAware, SlowestIsInterpolatedAndFastestIsNot) {
  const std::vector<double> ntk = NtkAwareFrequencies(64, 10000, 8),
                            usual = ops::RotaryFrequencies(64, 10000);
  EXPECT_EQ(ntk[0], usual[0]);
  EXPECT_NEAR(ntk[31] / usual[31], 1.0 / 8, 1e-13);
}

double Plain(const at::Tensor& q, const at::Tensor& k, int64_t m, int64_t n) {
  const auto rotate = [](const at::Tensor& x, int64_t position) {
    const auto table =
        ops::MakeRotaryTable(at::full({1, 1}, position, at::kLong), 8, 10000, at::kDouble);
    return ops::ApplyRotary(x.view({1, 1, 1, -1}), table);
  };
  return (rotate(q, m) * rotate(k, n)).sum().item<double>();
}

TEST(AttentionPositions, NothingToDoIsPlainRotation) {
  const at::Tensor q = Normal({8}, 1), k = Normal({8}, 2);
  for (const PositionsConfig& config :
       {PositionsConfig("interpolated"), PositionsConfig("ntk_aware"), PositionsConfig("yarn"),
        PositionsConfig("llama3"), PositionsConfig("rerope", {{"window", int64_t{50}}}),
        PositionsConfig("rerope", {{"window", int64_t{5}}, {"leak", int64_t{1}}}),
        PositionsConfig("streaming_llm", {{"window", int64_t{50}}}),
        PositionsConfig("lm_infinite", {{"window", int64_t{50}}})}) {
    const Method method(config, 8);
    EXPECT_NEAR(method.Score(q, k, 41, 3), Plain(q, k, 41, 3), 1e-12) << config.name();
  }
}

// The effective distances of each method.
TEST(AttentionPositions, CountDistances) {
  const at::Tensor q = Normal({8}, 3), k = Normal({8}, 4);
  const auto expect = [&](const PositionsConfig& config, int64_t m, int64_t n, int64_t counts) {
    EXPECT_NEAR(Method(config, 8).Score(q, k, m, n), Plain(q, k, counts, 0), 1e-12)
        << config.name() << " " << m << " " << n;
  };
  expect(PositionsConfig("interpolated", {{"factor", 4.0}}), 90, 10, 20);
  const PositionsConfig rerope("rerope", {{"window", int64_t{16}}});
  expect(rerope, 90, 75, 15);
  expect(rerope, 90, 74, 16);
  expect(rerope, 90, 3, 16);
  const PositionsConfig leaky("rerope", {{"window", int64_t{16}}, {"leak", int64_t{4}}});
  expect(leaky, 90, 75, 15);
  expect(leaky, 90, 74, 16);
  expect(leaky, 90, 2, 16 + (88 - 16) / 4);
  const PositionsConfig infinite("lm_infinite", {{"sinks", int64_t{2}}, {"window", int64_t{16}}});
  expect(infinite, 90, 1, 16);
  expect(infinite, 90, 80, 10);
  // Sinks 0 to 3 and 16 recent keys: the query has position 19 of the cache.
  const PositionsConfig streaming("streaming_llm",
                                  {{"sinks", int64_t{4}}, {"window", int64_t{16}}});
  expect(streaming, 90, 1, 18);
  expect(streaming, 17, 1, 16);
  expect(streaming, 90, 80, 10);
}

// Without a method, positions matter only through the causal mask: the last query of one layer does
// not depend on the order of the other tokens.
TEST(AttentionPositions, NoneKnowsNoOrder) {
  const BuiltMixer mixer(MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"rope_theta", 0.0}}),
                         16);
  const at::Tensor x = Normal({1, 9, 16}, 5);
  const at::Tensor turned = at::cat({x.narrow(1, 0, 8).flip(1), x.narrow(1, 8, 1)}, 1);
  EXPECT_TRUE(Close(mixer.Run(turned).select(1, 8), mixer.Run(x).select(1, 8), 1e-13));
}

ModelConfig Small(const PositionsConfig& positions, const MixerConfig& mixer) {
  ModelConfig config = {.vocab_size = 11,
                        .model_dim = 16,
                        .num_layers = 2,
                        .mixer = mixer,
                        .channel_mixer = ChannelMixerConfig("swiglu", {{"width", int64_t{16}}})};
  config.positions = positions;
  return config;
}

// The sines of 0, then those of 1. fairseq's table starts with the sines, two positions later.
TEST(Sinusoidal, TablesOfBothLayouts) {
  ParameterSet parameters;
  const PartContext context = {.sizes = {.model_dim = 4, .num_layers = 1},
                               .parameters = &parameters};
  const auto table = [&](const PositionsConfig& config, int64_t position) {
    return MakePositions(config, context)
        ->AddTo(at::zeros({1, 4}, at::kDouble), at::full({1}, position, at::kLong))[0];
  };
  const auto row = [](double a, double b, double c, double d) {
    return at::tensor({a, b, c, d}, at::kDouble);
  };
  const PositionsConfig usual("sinusoidal"), fairseq("sinusoidal", {{"layout", "fairseq"}});
  EXPECT_TRUE(Close(table(usual, 0), row(0, 1, 0, 1), 1e-15));
  EXPECT_TRUE(
      Close(table(usual, 3), row(std::sin(3), std::cos(3), std::sin(.03), std::cos(.03)), 1e-15));
  EXPECT_TRUE(Close(table(fairseq, 3),
                    row(std::sin(5), std::sin(5e-4), std::cos(5), std::cos(5e-4)), 1e-15));
}

// Rows start 37 tokens later in their document. Methods that use only distances give the same
// result, up to fp32 tables. Added tables do not.
TEST(AttentionPositions, DependOnlyOnDistances) {
  const auto hidden = [](const PositionsConfig& positions, double rope_theta, int64_t shift) {
    const MixerConfig softmax("softmax", {{"num_heads", int64_t{2}}, {"rope_theta", rope_theta}});
    ModelConfig config = Small(positions, softmax);
    config.initializer_range = 0.3;
    LanguageModel model(config);
    model.BindOwnMemory(3, /*requires_grad=*/false);
    auto slice = SequenceSlice::Contiguous(1, 30, 0, at::kCPU);
    slice.positions = slice.positions + shift;
    return model.Hidden(at::arange(30).remainder(11).unsqueeze(0), {.slice = &slice});
  };
  for (const char* name : {"none", "xpos", "alibi", "t5", "kerple_log", "kerple_power"})
    EXPECT_TRUE(Close(hidden(PositionsConfig(name), 10000, 37),
                      hidden(PositionsConfig(name), 10000, 0), 1e-5))
        << name;
  EXPECT_TRUE(test::BitEqual(hidden(PositionsConfig("none"), 0, 37),
                             hidden(PositionsConfig("none"), 0, 0)));
  for (const PositionsConfig& added : {PositionsConfig("learned", {{"max_positions", int64_t{80}}}),
                                       PositionsConfig("sinusoidal")})
    EXPECT_FALSE(Close(hidden(added, 0, 37), hidden(added, 0, 0), 1e-2)) << added.name();
}

// In one layer, a token affects tokens up to the end of the next block. In L layers it reaches L
// blocks and no further. Earlier tokens do not change.
TEST(BlockwiseCausal, ReachesABlockALayer) {
  constexpr int64_t kBlock = 8, kSeqLen = 64, kToken = 11;
  ModelConfig config =
      Small(PositionsConfig("xpos"),
            MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"block", kBlock}}));
  config.initializer_range = 0.3;
  LanguageModel model(config);
  model.BindOwnMemory(3, /*requires_grad=*/false);
  const auto slice = SequenceSlice::Contiguous(1, kSeqLen, 0, at::kCPU);
  at::Tensor tokens = at::arange(kSeqLen).remainder(11).unsqueeze(0);
  const at::Tensor before = model.Hidden(tokens, {.slice = &slice});
  tokens = tokens.clone();
  tokens.select(1, kToken).fill_(9);
  const at::Tensor after = model.Hidden(tokens, {.slice = &slice});
  for (int64_t t = 0; t < kSeqLen; ++t) {
    const bool hears = t >= kToken && t / kBlock - kToken / kBlock <= config.num_layers;
    EXPECT_EQ(test::BitEqual(after[0][t], before[0][t]), !hears) << t;
  }
}

// Three layers of xPos in fp64: one pass with the pattern equals block after block on cached keys
// and values, and token by token.
TEST(BlockwiseCausal, BlocksAndTokensOnACacheAreOnePass) {
  constexpr int64_t kBlock = 8, kSeqLen = 5 * kBlock + 3;
  ModelConfig config =
      Small(PositionsConfig("xpos", {{"scale_base", 16.0}}),
            MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"block", kBlock}}));
  config.num_layers = 3;
  LanguageModel model(config);
  for (int i = 0; i < model.parameters().size(); ++i)
    model.parameters().Bind(i, Normal(model.parameters().specs()[i].shape, 100 + i) * 0.4);
  const at::Tensor tokens = at::arange(2 * kSeqLen).remainder(11).view({2, kSeqLen});
  const auto slice = SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU);
  const at::Tensor want = model.Hidden(tokens, {.slice = &slice});
  for (const int64_t piece : {kBlock, int64_t{5}}) {
    ModelState state = model.EmptyState(2);
    std::vector<at::Tensor> pieces;
    for (int64_t begin = 0; begin < kSeqLen; begin += piece) {
      const int64_t count = std::min(piece, kSeqLen - begin);
      const SequenceSlice part = slice.Narrow(begin, count);
      pieces.push_back(model.Hidden(tokens.narrow(1, begin, count), {.slice = &part}, &state));
    }
    EXPECT_TRUE(Close(at::cat(pieces, 1), want, 1e-11)) << piece;
  }
  const at::Tensor logits = model.Logits(want);
  ModelState state = model.EmptyState(2);
  for (int64_t t = 0; t < kSeqLen; ++t)  // Logits are fp32.
    EXPECT_TRUE(Close(model.Step(tokens.select(1, t), state), logits.select(1, t), 1e-6)) << t;
}

// A block and its predecessor, treated as a row of their own with positions from 0, have the same
// scores as in the long row.
TEST(BlockwiseCausal, TilesMayCountFromTheirOwnStart) {
  constexpr int64_t kBlock = 8, kSeqLen = 5 * kBlock + 3;
  const MixerConfig softmax("softmax", {{"num_heads", int64_t{2}}, {"block", kBlock}});
  const at::Tensor x = Normal({1, kSeqLen, 16}, 9);
  for (const PositionsConfig& positions :
       {PositionsConfig("none"), PositionsConfig("xpos", {{"scale_base", 16.0}}),
        PositionsConfig("alibi"),
        PositionsConfig("t5", {{"num_buckets", int64_t{8}}, {"max_distance", int64_t{12}}})}) {
    const BuiltMixer mixer(softmax, 16, at::kDouble, 0.3, {.positions = positions});
    const at::Tensor whole = mixer.Run(x);
    for (int64_t begin = kBlock; begin < kSeqLen; begin += kBlock) {
      const int64_t count = std::min(kBlock, kSeqLen - begin);
      const at::Tensor tile = mixer.Run(x.narrow(1, begin - kBlock, kBlock + count));
      EXPECT_TRUE(Close(tile.narrow(1, kBlock, count), whole.narrow(1, begin, count), 1e-12))
          << positions.name() << ", block at " << begin;
    }
  }
}

TEST(AttentionPositions, LayersShareT5sTableAndOwnKerples) {
  const MixerConfig softmax("softmax", {{"num_heads", int64_t{2}}});
  const auto count = [&](const char* positions) {
    return LanguageModel(Small(PositionsConfig(positions), softmax)).CountParameters().total();
  };
  EXPECT_EQ(count("t5") - count("none"), 32 * 2);
  EXPECT_EQ(count("kerple_log") - count("none"), 2 * 2 * 2);
}

// As in the authors' code: kerple_log starts with r1 in [0, 2) and r2 in [0, 1), and kerple_power
// the other way around.
TEST(Kerple, InitialValues) {
  const auto largest = [](const char* positions, const char* parameter) {
    LanguageModel model(
        Small(PositionsConfig(positions), MixerConfig("softmax", {{"num_heads", int64_t{8}}})));
    model.BindOwnMemory(3, /*requires_grad=*/false);
    double max = 0;
    for (int i = 0; i < model.parameters().size(); ++i)
      if (model.parameters().specs()[i].name.ends_with(parameter))
        max = std::max(max, model.parameters().tensor(i).max().item<double>());
    return max;
  };
  for (const auto& [positions, wide, narrow] : {std::tuple{"kerple_log", "kerple.r1", "kerple.r2"},
                                                {"kerple_power", "kerple.r2", "kerple.r1"}}) {
    EXPECT_THAT(largest(positions, wide), testing::AllOf(testing::Gt(1), testing::Lt(2)))
        << positions;
    EXPECT_THAT(largest(positions, narrow), testing::AllOf(testing::Gt(0.5), testing::Lt(1)))
        << positions;
  }
}

// Beyond a limit, r1 and r2 count as the limit. They have its gradient if that leads back inside,
// and none if it leads further outside.
TEST(Kerple, IsLearnedBeyondItsLimits) {
  struct Gradients {
    at::Tensor bias, r1, r2;  // r1 and r2 [H, 1]
  };
  constexpr int64_t kHeads = 2;
  // The gradient of the biases is 1 in one head and -1 in the other.
  const at::Tensor dy = at::tensor({1.F, -1.F}).unsqueeze(1).expand({kHeads, 5});
  const auto gradients = [&](const char* name, float r1, float r2) -> Gradients {
    ParameterSet parameters;
    const PartContext context = {.sizes = {.model_dim = 4, .num_layers = 1},
                                 .parameters = &parameters};
    const auto positions = MakePositions(PositionsConfig(name), context);
    const auto method = positions->OfLayer({.part = context, .num_heads = kHeads, .head_dim = 2});
    const at::Tensor of_r1 = at::full({kHeads, 1}, r1).requires_grad_(),
                     of_r2 = at::full({kHeads, 1}, r2).requires_grad_();
    parameters.Bind(0, of_r1), parameters.Bind(1, of_r2);
    const at::Tensor bias = method->Bias(5, at::kFloat);
    bias.backward(dy);
    return {.bias = bias.detach(), .r1 = of_r1.grad(), .r2 = of_r2.grad()};
  };
  for (const char* name : {"kerple_log", "kerple_power"}) {
    const Gradients limit = gradients(name, 0.01F, 0.01F), below = gradients(name, -1, 0.003F);
    EXPECT_LT(limit.r1[0].item<float>(), 0) << name;  // A step makes r1 larger.
    EXPECT_LT(limit.r2[0].item<float>(), 0) << name;
    EXPECT_TRUE(test::BitEqual(below.bias, limit.bias)) << name;
    EXPECT_TRUE(test::BitEqual(below.r1, limit.r1.clamp_max(0))) << name;
    EXPECT_TRUE(test::BitEqual(below.r2, limit.r2.clamp_max(0))) << name;
  }
  const Gradients limit = gradients("kerple_power", 1, 2), above = gradients("kerple_power", 1, 3);
  EXPECT_TRUE(test::BitEqual(above.bias, limit.bias));
  EXPECT_TRUE(test::BitEqual(above.r1, limit.r1));
  EXPECT_TRUE(test::BitEqual(above.r2, limit.r2.clamp_min(0)));
}

TEST(AttentionPositions, SayWhatDoesNotFit) {
  const auto make = [](const PositionsConfig& positions, const MixerConfig& mixer) {
    LanguageModel(Small(positions, mixer));
  };
  EXPECT_HL_ERROR(make(PositionsConfig("alibi"), MixerConfig("gla", {{"num_heads", int64_t{2}}})),
                  ExitCode::kUsage, "positions: alibi needs an attention layer",
                  "Use positions { none {} } or add an attention layer.");
  EXPECT_HL_ERROR(make(PositionsConfig("xpos"),
                       MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"rope_theta", 0.0}})),
                  ExitCode::kUsage, "rope_theta 0. Use an even head_dim and a rope_theta above 1.");
  EXPECT_HL_ERROR(make(PositionsConfig("streaming_llm"),
                       MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"window", int64_t{8}}})),
                  ExitCode::kUsage, "window 8", "Use 0 for both.");
  EXPECT_HL_ERROR(make(PositionsConfig("yarn", {{"factor", 0.5}}), MixerConfig("softmax")),
                  ExitCode::kUsage, "factor is 0.5", "at least 1");
  EXPECT_HL_ERROR(
      make(PositionsConfig("yarn", {{"attention_factor", -1.0}}), MixerConfig("softmax")),
      ExitCode::kUsage, "attention_factor is -1. Use a number above 0, or 0 for");
  EXPECT_HL_ERROR(make(PositionsConfig("llama3", {{"fast", 1.0}}), MixerConfig("softmax")),
                  ExitCode::kUsage, "fast and slow are 1 and 1", "Use fast > slow > 0.");
  // A block of queries may lose a factor of e^(0.1 x 512).
  EXPECT_HL_ERROR(make(PositionsConfig("xpos", {{"scale_base", 1.0}}), MixerConfig("softmax")),
                  ExitCode::kUsage, "scale_base is 1 with gamma 0.4",
                  "keeps only 0.285714 of a product", "a scale_base of at least 12.5276");
  make(PositionsConfig("xpos", {{"scale_base", 12.6}}),
       MixerConfig("softmax", {{"num_heads", int64_t{2}}}));
  EXPECT_HL_ERROR(make(PositionsConfig("alibi", {{"slope_scale", -1.0}}), MixerConfig("softmax")),
                  ExitCode::kUsage, "slope_scale is -1", "a number from 0 on");
}

}  // namespace
}  // namespace halflife::model
