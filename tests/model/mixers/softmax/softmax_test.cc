// Softmax attention beyond the conformance suite: dropout of the probabilities, which is active
// only in training, and an encoder and the options of hybrid models compared with their definition.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>
#include <vector>

#include "model/mixer_forms.h"
#include "model/mixers/built_mixer.h"
#include "model/positions/attention_positions.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::BitEqual;
using test::BuiltMixer;
using test::Close;
using test::Normal;

constexpr int64_t kDim = 16, kHeads = 4, kSeqLen = 9;

struct Dropped {
  at::Tensor y;
  std::vector<double> rates;  // Rates of the requested draws.
};

// Runs the mixer with `rate` instead of its own dropout rate.
Dropped RunWith(const BuiltMixer& built, const SequenceSlice& slice, const at::Tensor& x,
                double rate) {
  Dropped result;
  const MixerCall::DropWithin drop_within = [&](uint32_t site, double own) {
    EXPECT_EQ(site, 0u);
    result.rates.push_back(own);
    return ops::DropoutConfig{.rate = rate,
                              .key = MakeRandomKey(1, RandomPurpose::kTest, 2),
                              .samples = at::arange(x.size(0), at::kLong),
                              .first_position = slice.begin};
  };
  result.y = built->Forward({.x = x, .slice = slice, .drop_within = drop_within}).y;
  return result;
}

// The norm of q and k adds qk_norm_eps to the mean square. A large one gives scores of 0, so that
// all keys weigh the same, as with a norm of k whose weight is 0.
TEST(SoftmaxTest, EpsOfTheNormOfQAndK) {
  const at::Tensor x = Normal({2, kSeqLen, kDim}, 1);
  const auto run = [&](double eps, double norm_weight) {
    BuiltMixer built(
        MixerConfig("softmax", {{"num_heads", kHeads}, {"qk_norm", true}, {"qk_norm_eps", eps}}),
        kDim);
    built.Set("k_norm.weight", built["k_norm.weight"] * norm_weight);
    return built.Run(x);
  };
  EXPECT_TRUE(Close(run(1e30, 1), run(1e-5, 0), 1e-12));
  EXPECT_FALSE(Close(run(1e-5, 1), run(1e-5, 0), 1e-3));
  EXPECT_FALSE(Close(run(1e-5, 1), run(1e-1, 1), 1e-6));
}

// Layers share mask data only if their patterns are equal. Different patterns that use one slice in
// turn, with and without earlier keys, give the same bits as with separate slices.
TEST(SoftmaxTest, LayersOfSeveralPatternsShareASlice) {
  const std::vector<std::vector<Assignment>> patterns = {
      {},
      {{"window", int64_t{3}}},
      {{"window", int64_t{3}}, {"sinks", int64_t{1}}},
      {{"window", int64_t{3}}, {"sinks", int64_t{2}}},
      {{"block", int64_t{3}}},
      {{"causal", false}},
      {{"causal", false}, {"window", int64_t{3}}}};
  const at::Tensor x = Normal({2, kSeqLen, kDim}, 1), before = Normal({2, 4, kDim}, 2);
  const std::vector<int32_t> cu_seqlens = {0, 4, 9, 18};
  const auto packed = [&] { return SequenceSlice::Packed(2, kSeqLen, cu_seqlens, at::kCPU); };
  const auto behind = [] { return SequenceSlice::Contiguous(2, kSeqLen, 4, at::kCPU); };
  const SequenceSlice shared = packed(), shared_behind = behind();
  for (std::vector<Assignment> options : patterns) {
    const bool causal = options.empty() || options[0].name != "causal";
    options.push_back({"num_heads", kHeads});
    BuiltMixer built(MixerConfig("softmax", options), kDim);
    const auto run = [&](const SequenceSlice& slice) {
      return built->Forward({.x = x, .slice = slice}).y;
    };
    EXPECT_TRUE(BitEqual(run(shared), run(packed())));
    if (!causal) continue;
    const auto start = SequenceSlice::Contiguous(2, 4, 0, at::kCPU);
    const MixerState state =
        built->Forward({.x = before, .slice = start, .want_state = true}).state;
    const auto go_on = [&](const SequenceSlice& slice) {
      return built->Forward({.x = x, .slice = slice, .initial = &state, .num_past = 4}).y;
    };
    run(shared_behind);  // As if there were no earlier tokens.
    EXPECT_TRUE(BitEqual(go_on(shared_behind), go_on(behind())));
  }
}

TEST(SoftmaxTest, DropsProbabilitiesOnlyInTraining) {
  const MixerConfig config("softmax", {{"num_heads", kHeads},
                                       {"num_kv_heads", int64_t{2}},
                                       {"window", int64_t{5}},
                                       {"out_bias", true},
                                       {"dropout", 0.25}});
  BuiltMixer built(config, kDim);
  built.FillZeros();
  const at::Tensor x = Normal({2, kSeqLen, kDim}, 1);
  const std::vector<int32_t> cu_seqlens = {0, 4, 9, 18};
  for (const SequenceSlice& slice : {SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU),
                                     SequenceSlice::Packed(2, kSeqLen, cu_seqlens, at::kCPU)}) {
    const at::Tensor want = built->Forward({.x = x, .slice = slice}).y;
    const Dropped kept = RunWith(built, slice, x, 0);
    EXPECT_TRUE(BitEqual(kept.y, want)) << "nothing dropped is nothing changed";
    EXPECT_EQ(kept.rates, std::vector<double>{0.25});
    EXPECT_FALSE(Close(RunWith(built, slice, x, 0.25).y, want, 1e-3));
    // The rate is almost 1, and here everything is dropped.
    const Dropped none = RunWith(built, slice, x, 1 - 1e-9);
    EXPECT_TRUE(Close(none.y, built["o_proj.bias"].expand_as(none.y), 1e-15));
  }
}

// On a GPU, calls that run in LibTorch store two fp32 copies of each weight. The CPU stores none.
TEST(SoftmaxTest, PlansTheWeightsThatDropoutKeeps) {
  const auto bytes_per_key = [](double rate, int64_t bytes_per_element, const char* positions) {
    const BuiltMixer built(MixerConfig("softmax", {{"num_heads", kHeads}, {"dropout", rate}}), kDim,
                           at::kFloat, 0.3, {.positions = PositionsConfig(positions)});
    EXPECT_EQ(built->ActivationBytesPerToken(2048, bytes_per_element),
              built->ActivationBytesPerToken(1024, bytes_per_element));
    return (built->GpuActivationBytesPerToken(2048, bytes_per_element) -
            built->GpuActivationBytesPerToken(1024, bytes_per_element)) /
           1024;
  };
  EXPECT_EQ(bytes_per_key(0.1, 2, "none"), 0);
  EXPECT_EQ(bytes_per_key(0.1, 4, "none"), 8 * kHeads) << "fp32";
  EXPECT_EQ(bytes_per_key(0.1, 2, "xpos"), 8 * kHeads) << "decays";
  EXPECT_EQ(bytes_per_key(0.1, 2, "rerope"), 8 * kHeads) << "far pairs";
  EXPECT_EQ(bytes_per_key(0, 4, "xpos"), 0);
}

TEST(SoftmaxTest, WithoutARateNothingIsDropped) {
  const BuiltMixer built(MixerConfig("softmax", {{"num_heads", kHeads}}), kDim);
  const auto slice = SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU);
  const at::Tensor x = Normal({2, kSeqLen, kDim}, 1);
  EXPECT_TRUE(RunWith(built, slice, x, 0.5).rates.empty());
}

// In fp64: softmax_j(q_i k_j / sqrt(d) - slope |i - j|) over the document of i, in both directions.
TEST(SoftmaxTest, AnEncoderWithAlibiLooksBothWays) {
  const MixerConfig config("softmax",
                           {{"num_heads", kHeads}, {"causal", false}, {"rope_theta", 0}});
  const BuiltMixer built(config, kDim, at::kDouble, 0.3, {.positions = PositionsConfig("alibi")});
  const at::Tensor x = Normal({1, kSeqLen, kDim}, 2);
  const std::vector<int32_t> cu_seqlens = {0, 4, 9};
  const auto slice = SequenceSlice::Packed(1, kSeqLen, cu_seqlens, at::kCPU);
  const auto heads = [&](const char* name) {  // [H, T, d]
    return at::linear(x[0], built[name]).unflatten(1, {kHeads, kDim / kHeads}).transpose(0, 1);
  };
  const at::Tensor place = at::arange(kSeqLen, at::kDouble);
  const at::Tensor distance = (place.unsqueeze(1) - place).abs();
  const at::Tensor slopes = at::tensor(AlibiSlopes(kHeads), at::kDouble).view({kHeads, 1, 1});
  const at::Tensor document = (place >= 4).to(at::kLong);
  const at::Tensor scores = heads("q_proj.weight").matmul(heads("k_proj.weight").transpose(1, 2)) /
                                std::sqrt(static_cast<double>(kDim / kHeads)) -
                            slopes * distance;
  const at::Tensor weights =
      scores
          .masked_fill(document.unsqueeze(1).ne(document), -std::numeric_limits<double>::infinity())
          .softmax(-1);
  const at::Tensor want = at::linear(
      weights.matmul(heads("v_proj.weight")).transpose(0, 1).flatten(1), built["o_proj.weight"]);
  EXPECT_TRUE(Close(built->Forward({.x = x, .slice = slice}).y[0], want, 1e-13));
}

// The attention of one document in fp64 from its definition, for the options of hybrid models:
// o = (softmax(scale m q k^T) v * sigmoid(x W_g + b_g)) W_o, where norms and a rotation of the
// first `rotated` channels have been applied to q and k.
struct HybridForm {
  std::vector<Assignment> options;
  bool all_heads = false, zero_centered = false, rotates = true;
  int64_t head_dim = 4, rotated = 4;
  double scale = 0.5;
};

at::Tensor NormedHeads(const at::Tensor& x, const at::Tensor& weight, const HybridForm& form) {
  const at::Tensor of = form.all_heads ? x : x.unflatten(-1, {-1, form.head_dim});
  const at::Tensor factor = form.zero_centered ? weight + 1 : weight;
  const at::Tensor y = of * (of.square().mean(-1, true) + 1e-5).rsqrt() * factor;
  return form.all_heads ? y.unflatten(-1, {-1, form.head_dim}) : y;
}

// x [T, heads, d]
at::Tensor Turned(const at::Tensor& x, const HybridForm& form) {
  if (!form.rotates) return x;
  const int64_t pairs = (form.rotated + 1) / 2;
  const at::Tensor exponents = at::arange(pairs, at::kDouble) * (-2.0 / form.rotated);
  const at::Tensor angles = at::arange(x.size(0), at::kDouble).view({-1, 1, 1}) *
                            at::pow(at::tensor(10000.0, at::kDouble), exponents);
  const at::Tensor a = x.narrow(2, 0, pairs), b = x.narrow(2, pairs, pairs);
  return at::cat({a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(),
                  x.narrow(2, 2 * pairs, x.size(2) - 2 * pairs)},
                 2);
}

at::Tensor ByDefinition(const BuiltMixer& built, const at::Tensor& x, const HybridForm& form) {
  const auto product = [&](const char* name) {
    return at::linear(x, built[std::string(name) + ".weight"], built[std::string(name) + ".bias"]);
  };
  const at::Tensor q = Turned(NormedHeads(product("q_proj"), built["q_norm.weight"], form), form),
                   k = Turned(NormedHeads(product("k_proj"), built["k_norm.weight"], form), form),
                   v = product("v_proj").unflatten(-1, {-1, form.head_dim});
  const int64_t group = q.size(1) / k.size(1), seq_len = x.size(0);
  const auto heads = [&](const at::Tensor& of) {
    return of.repeat_interleave(q.size(1) / of.size(1), 1).transpose(0, 1);
  };
  EXPECT_GE(group, 1);
  const at::Tensor later = at::ones({seq_len, seq_len}, at::kBool).triu(1);
  const at::Tensor weights = (heads(q).matmul(heads(k).transpose(1, 2)) * form.scale)
                                 .masked_fill(later, -std::numeric_limits<double>::infinity())
                                 .softmax(-1);
  const at::Tensor mixed = weights.matmul(heads(v)).transpose(0, 1).flatten(1);
  return at::linear(mixed * product("g_proj").sigmoid(), built["o_proj.weight"]);
}

TEST(SoftmaxTest, TheOptionsOfHybridModelsAreTheirFormula) {
  const std::vector<HybridForm> forms = {
      {.options = {{"num_kv_heads", int64_t{2}}}},
      {.options = {{"qk_norm_zero_centered", true}, {"qk_norm_over", "all_heads"}},
       .all_heads = true,
       .zero_centered = true},
      {.options = {{"partial_rotary_factor", 0.25}, {"head_dim", int64_t{12}}},
       .head_dim = 12,
       .rotated = 3,
       .scale = 1 / std::sqrt(12.0)},
      {.options = {{"partial_rotary_factor", 0.5}, {"qk_norm_zero_centered", true}},
       .zero_centered = true,
       .rotated = 2},
      {.options = {{"score_scale", 0.3}, {"key_multiplier", 0.7}, {"rope_theta", 0.0}},
       .rotates = false,
       .scale = 0.21},
      {.options = {{"key_multiplier", 3.0}}, .scale = 1.5}};
  const at::Tensor x = Normal({1, kSeqLen, kDim}, 1);
  for (const HybridForm& form : forms) {
    std::vector<Assignment> options = form.options;
    for (const char* on : {"qk_norm", "qkv_bias"}) options.push_back({on, true});
    options.push_back({"num_heads", kHeads});
    options.push_back({"output_gate", "sigmoid"});
    BuiltMixer built(MixerConfig("softmax", options), kDim);
    built.FillZeros();
    for (const char* norm : {"q_norm.weight", "k_norm.weight"})
      built.Set(norm, Normal(built[norm].sizes().vec(), 5));
    EXPECT_TRUE(Close(built.Run(x)[0], ByDefinition(built, x[0], form), 1e-12))
        << NameOf(MixerConfig("softmax", options));
  }
}

// Scalings of rotary positions act on the rotated channels as on a head of their width.
TEST(SoftmaxTest, PositionMethodsRotatePartsOfAHead) {
  constexpr int64_t kHeadDim = 8;
  const at::Tensor x = Normal({1, kSeqLen, kDim}, 1);
  const auto run = [&](const PositionsConfig& positions, double part) {
    const BuiltMixer built(MixerConfig("softmax", {{"num_heads", kHeads},
                                                   {"head_dim", kHeadDim},
                                                   {"partial_rotary_factor", part}}),
                           kDim, at::kDouble, 0.3, {.positions = positions});
    return built.Run(x);
  };
  const at::Tensor plain = run(PositionsConfig("none"), 0.5);
  EXPECT_TRUE(Close(run(PositionsConfig("interpolated", {{"factor", 1.0}}), 0.5), plain, 1e-12));
  EXPECT_FALSE(Close(run(PositionsConfig("interpolated", {{"factor", 2.0}}), 0.5), plain, 1e-4));
  EXPECT_FALSE(Close(run(PositionsConfig("none"), 1), plain, 1e-4));
  EXPECT_HL_ERROR(run(PositionsConfig("xpos"), 0.5), ExitCode::kUsage,
                  "positions: xpos needs layers that rotate whole heads, but this one rotates 4 of "
                  "8 channels. Use partial_rotary_factor 1, or other positions.");
}

// The gate adds a matrix of q_proj's size, and two tensors of its width that backward keeps.
TEST(SoftmaxTest, CostOfTheOutputGate) {
  const BuiltMixer plain(MixerConfig("softmax", {{"num_heads", kHeads}}), kDim),
      gated(MixerConfig("softmax", {{"num_heads", kHeads}, {"output_gate", "sigmoid"}}), kDim);
  EXPECT_EQ(gated.parameters().num_elements() - plain.parameters().num_elements(), kDim * kDim);
  EXPECT_EQ(gated->FlopsPerToken(64).matmul - plain->FlopsPerToken(64).matmul, 2 * kDim * kDim);
  EXPECT_EQ(gated->ActivationBytesPerToken(64, 2) - plain->ActivationBytesPerToken(64, 2),
            2 * 2 * kDim);
}

TEST(SoftmaxTest, OptionsThatDoNotFitAreRefused) {
  const auto problem = [](std::vector<Assignment> options) {
    options.push_back({"num_heads", kHeads});
    MixerConfig config("softmax", options);
    const std::vector<std::string> problems = config.Resolve({.model_dim = kDim, .num_layers = 1});
    return problems.empty() ? "" : problems.front();
  };
  EXPECT_EQ(problem({{"partial_rotary_factor", 0.5}, {"score_scale", 1.0}}), "");
  EXPECT_EQ(problem({{"partial_rotary_factor", 0.1}}),
            "mixer softmax: option partial_rotary_factor is 0.1 with head_dim 4. Use a number in "
            "(0, 1] that rotates at least one channel, or rope_theta 0 for no rotation.");
  EXPECT_EQ(
      problem({{"qk_norm_zero_centered", true}}),
      "mixer softmax: qk_norm_zero_centered without qk_norm. Set qk_norm, or leave the option "
      "out.");
  EXPECT_EQ(
      problem({{"qk_norm_over", "all_heads"}}),
      "mixer softmax: qk_norm_over all_heads without qk_norm. Set qk_norm, or leave the option "
      "out.");
  EXPECT_EQ(problem({{"score_scale", -1.0}}),
            "mixer softmax: option score_scale is -1. Use a number above 0, or 0 for 1 / "
            "sqrt(head_dim).");
  EXPECT_EQ(
      problem({{"key_multiplier", 0.0}}),
      "mixer softmax: option key_multiplier is 0. Use a number above 0, or 1 for keys without "
      "a factor.");
  EXPECT_EQ(
      problem({{"key_multiplier", 2.0}, {"cos_scale", 2.0}}),
      "mixer softmax: key_multiplier with cos_scale, whose scores depend only on the angle of "
      "q and k. Remove one of them.");
}

TEST(SoftmaxTest, ARateOfOneIsRefused) {
  MixerConfig config("softmax", {{"dropout", 1.0}});
  const std::vector<std::string> problems = config.Resolve({.model_dim = kDim, .num_layers = 1});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("dropout is 1. Use a number in [0, 1)"), std::string::npos)
      << problems[0];
}

}  // namespace
}  // namespace halflife::model
