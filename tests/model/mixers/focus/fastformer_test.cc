// Fastformer equals its published formulas in parallel form, decoding and bf16. Test numbers are
// those of LEAP's and Fastformer's required properties.
#include <ATen/ops/layer_norm.h>
#include <gtest/gtest.h>

#include "model/mixers/focus/support.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::Close;
using test::FocusMixer;
using test::Heads;
using test::Named;
using test::Normal;
using test::Pooled;
using test::Projected;
using test::Standardised;

constexpr int64_t kDim = 16, kHeads = 2, kHeadDim = 8;
const std::vector<std::string> kPresets = {"additive_readme", "fastformer_seed", "fastformer_v011",
                                           "fastformer_latest"};

MixerConfig Fastformer(const std::string& preset, int64_t window) {
  return MixerConfig(
      "fastformer",
      {{"preset", preset}, {"num_heads", kHeads}, {"windows", "same"}, {"window", window}});
}

// Computes the published formulas as in the authors' code. For fastformer_seed, it is the part that
// is added to the residual.
at::Tensor Formula(const std::string& preset, int64_t window, const at::Tensor& x,
                   const Named& weights) {
  const auto bare = [&](const at::Tensor& y, const char* name, int64_t width) {
    const at::Tensor heads = Heads(y, kHeads);
    const at::Tensor l = (heads * Heads(weights.at(name), kHeads)).sum(-1) / std::sqrt(width);
    return Pooled(l.exp(), heads, window, 0).flatten(2);
  };
  const auto project = [&](const char* name) { return Projected(x, weights.at(name)); };
  if (preset == "additive_readme") return bare(x, "query_attn", kDim) * project("Wvalues.weight");
  if (preset == "fastformer_seed") {
    const at::Tensor pooled = bare(project("Wquery.weight"), "query_attn", kHeadDim);
    const at::Tensor m = Projected(pooled, weights.at("Wpooled.weight")) * project("Wkeys.weight");
    const at::Tensor normed = at::layer_norm(x + m, {kDim}, weights.at("mix_norm.weight"),
                                             weights.at("mix_norm.bias"), 1e-5);
    return m + bare(normed, "key_attn", kHeadDim) * project("Wvalues.weight");
  }
  const bool latest = preset == "fastformer_latest";
  const auto pool = [&](const at::Tensor& y, const char* name) {
    const at::Tensor heads = Standardised(Heads(y, kHeads), 1e-5);
    const at::Tensor l = (heads * Standardised(weights.at(name), 1e-5)).sum(-1);
    return Pooled((l / kHeadDim * (latest ? 15 : 5)).exp(), heads, window, latest ? 1e-5 : 0)
        .flatten(2);
  };
  const std::vector<at::Tensor> y =
      latest ? project("projections.weight").chunk(3, -1)
             : std::vector<at::Tensor>{project("Wquery.weight"), project("Wkeys.weight"),
                                       project("Wvalues.weight")};
  return pool(pool(y[0], "query_attn") * y[1], "key_attn") * y[2];
}

// Number 13. With a window of one token all weights cancel, so the gradients of the vectors consist
// only of rounding errors.
TEST(FastformerTest, IsThePublishedFormula) {
  for (const std::string& preset : kPresets)
    for (const int64_t window : {0, 2, 5, 20}) {
      SCOPED_TRACE(preset + ", window " + std::to_string(window));
      test::ExpectFormula(Fastformer(preset, window), kDim, 50,
                          [&](const at::Tensor& x, const Named& weights) {
                            return Formula(preset, window, x, weights);
                          });
    }
}

// Number 11, with the windows that each preset assigns to 6 layers, up to 64.
TEST(FastformerTest, StepsAreTheWhole) {
  for (const std::string& preset : kPresets) {
    SCOPED_TRACE(preset);
    test::ExpectStepsAreTheWhole(
        MixerConfig("fastformer", {{"preset", preset}, {"num_heads", kHeads}}), {3, 15, 64, 100});
  }
}

// Number 12: a token reaches twice the sum of window - 1 over the layers, because each has two
// pools. additive has one.
TEST(FastformerTest, ReachesTwiceItsWindows) {
  for (const std::string& preset : kPresets) {
    SCOPED_TRACE(preset);
    test::ExpectReach(Fastformer(preset, 3), (preset == "additive_readme" ? 1 : 2) * 2 * 2);
  }
}

// Dropout is applied to the output of each pool.
TEST(FastformerTest, DropsWhatIsPooled) {
  const at::Tensor x = Normal({2, 12, kDim}, 1);
  for (const std::string& preset : kPresets) {
    MixerConfig config = Fastformer(preset, 4);
    config.Set("dropout", 0.5);
    const FocusMixer built(config, kDim, at::kDouble);
    std::vector<uint32_t> sites;
    const auto drop = [&](uint32_t site, const at::Tensor& y, double rate) {
      EXPECT_EQ(rate, 0.5);
      EXPECT_EQ(y.sizes(), x.sizes());
      sites.push_back(site);
      return y * 0;
    };
    // Without the pooled rows the output is zero.
    EXPECT_TRUE((built(x, drop) == 0).all().item<bool>()) << preset;
    EXPECT_EQ(sites, preset == "additive_readme" ? std::vector<uint32_t>({0})
                                                 : std::vector<uint32_t>({0, 1}));
  }
}

// Number 18: one map for the query's pool and one for the key's.
TEST(FastformerTest, ExplainsItself) {
  for (const std::string& preset : kPresets)
    for (const int64_t window : {0, 6}) {
      SCOPED_TRACE(preset);
      test::ExpectSharesAgree(Fastformer(preset, window), kDim,
                              preset == "additive_readme" ? 1 : 2);
    }
}

// Both maps together reproduce the layer's output.
TEST(FastformerTest, SharesRebuildTheOutput) {
  const at::Tensor x = Normal({2, 25, kDim}, 3);
  const auto slice = SequenceSlice::Contiguous(2, 25, 0, at::kCPU);
  for (const char* preset : {"fastformer_v011", "fastformer_latest"})
    for (const int64_t window : {0, 6}) {
      SCOPED_TRACE(preset);
      const FocusMixer mixer(Fastformer(preset, window), kDim, at::kDouble);
      const std::vector<Explanation> pools =
          dynamic_cast<const Explained&>(mixer.built.mixer()).Explain({.x = x, .slice = slice});
      ASSERT_EQ(pools.size(), 2u);
      const bool joined = mixer.named.contains("projections.weight");
      std::vector<at::Tensor> parts;  // q, k, v
      if (joined) parts = Projected(x, mixer.named.at("projections.weight")).chunk(3, -1);
      for (const char* name : {"Wquery.weight", "Wkeys.weight", "Wvalues.weight"})
        if (!joined) parts.push_back(Projected(x, mixer.named.at(name)));
      const auto pooled = [&](int pool, const at::Tensor& y) {
        const at::Tensor heads = Standardised(Heads(y, kHeads), 1e-5);
        return (pools[pool].Dense().unsqueeze(4) * heads.unsqueeze(1)).sum(2).flatten(2);
      };
      EXPECT_TRUE(Close(pooled(1, pooled(0, parts[0]) * parts[1]) * parts[2], mixer(x), 1e-12));
    }
}

TEST(FastformerTest, RunsInBf16) {
  for (const std::string& preset : kPresets) {
    SCOPED_TRACE(preset);
    test::ExpectBf16IsClose(Fastformer(preset, 20));
  }
}

TEST(FastformerTest, SaysWhatDoesNotFit) {
  const auto make = [](const std::vector<Assignment>& options) {
    FocusMixer(MixerConfig("fastformer", options), kDim, at::kFloat);
  };
  EXPECT_HL_ERROR(make({{"num_heads", 5}}), ExitCode::kUsage, "num_heads 5", "model_dim 16");
  EXPECT_HL_ERROR(make({{"num_heads", 16}}), ExitCode::kUsage, "width per head 1", "at most 8");
  EXPECT_HL_ERROR(make({{"preset", "fastformer_seed"}, {"rescale", 5.0}}), ExitCode::kUsage,
                  "rescale is 5", "Use rescale 0.");
}

// Number 15, as for LEAP: D 128, 6 layers, 32100 tokens, 2048 positions. The first two models have
// biases over the vocabulary, and the first has a norm of the embedding instead of a last norm.
TEST(FastformerTest, CountsThePublishedParameters) {
  constexpr int64_t kWidth = 128, kLayers = 6, kVocab = 32100, kPositions = 2048;
  const int64_t norm = 2 * kWidth;
  const auto all = [&](const char* preset) {
    const int64_t own =
        FocusMixer(MixerConfig("fastformer", {{"preset", preset}}), kWidth, at::kFloat)
            .built.parameters()
            .num_elements();
    return (kVocab + kPositions) * kWidth + kVocab + norm +
           kLayers * (own + 8 * kWidth * kWidth + 2 * norm);
  };
  EXPECT_EQ(all("fastformer_v011"), 5489252);
  EXPECT_EQ(all("fastformer_latest"), 5489252);
  EXPECT_EQ(all("fastformer_seed"), 5589092);
}

}  // namespace
}  // namespace halflife::model
