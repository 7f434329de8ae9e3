// Hyena's FFT convolution equals the direct sum, and its filter starts as published.
#include <ATen/ops/sin.h>

#include <cmath>
#include <numbers>

#include "model/mixers/built_mixer.h"
#include "model/mixers/direct_convolution.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

constexpr int64_t kDim = 5, kSeqLen = 12, kFilterLen = 20, kWidth = 7;

MixerConfig Small() {
  return MixerConfig("hyena", {{"filter_len", kFilterLen}, {"filter_width", kWidth}});
}

at::Tensor Affine(const BuiltMixer& built, const std::string& name, const at::Tensor& x) {
  return x.matmul(built[name + ".weight"].t()) + built[name + ".bias"];
}

// exp(-t |a_c|) times the network, with a from ln(0.01) / 1.5 to ln(0.01) / 0.3 and t from 0 to 1.
at::Tensor Filter(const BuiltMixer& built) {
  const std::string network = "filter_fn.implicit_filter.";
  const at::Tensor frequency = built[network + "1.freq"];
  at::Tensor h = built["filter_fn.pos_emb.z"][0].narrow(0, 0, kSeqLen);
  for (const char* layer : {"0", "2", "4"})
    h = at::sin(frequency * Affine(built, network + layer, h));
  h = h.matmul(built[network + "6.weight"].t()).clone();
  for (int64_t t = 0; t < kSeqLen; ++t) {
    for (int64_t c = 0; c < kDim; ++c) {
      const double share = static_cast<double>(c) / (kDim - 1);
      const double rate = -std::log(0.01) * ((1 - share) / 1.5 + share / 0.3);
      h[t][c] *= std::exp(-rate * static_cast<double>(t) / (kFilterLen - 1));
    }
  }
  return h;
}

TEST(HyenaTest, TheTransformIsTheDirectSum) {
  BuiltMixer built(Small(), kDim);
  built.FillZeros();
  const at::Tensor x = Normal({2, kSeqLen, kDim}, 1);
  const at::Tensor convolved =
      test::ShortSum(Affine(built, "in_proj", x), built["short_filter.weight"]) +
      built["short_filter.bias"];
  const std::vector<at::Tensor> parts = convolved.chunk(3, 2);  // x1, x2, v
  const at::Tensor u = parts[0] * parts[2];
  const at::Tensor y = parts[1] * (test::LongSum(u, Filter(built)) + built["filter_fn.bias"] * u);
  EXPECT_TRUE(Close(built.Run(x), Affine(built, "o_proj", y), 1e-12));
}

TEST(HyenaTest, PositionsStartAsTheirFeatures) {
  const at::Tensor z = BuiltMixer(Small(), kDim)["filter_fn.pos_emb.z"];
  for (const int64_t t : {0, 1, 19}) {
    const double angle = 1e-4 * 2 * std::numbers::pi * static_cast<double>(t) / kFilterLen;
    EXPECT_FLOAT_EQ(z[0][t][0].item<double>(), static_cast<float>(t) / 19);
    EXPECT_FLOAT_EQ(z[0][t][1].item<double>(), static_cast<float>(std::cos(angle)));
    EXPECT_FLOAT_EQ(z[0][t][2].item<double>(), static_cast<float>(-std::sin(angle)));
  }
}

TEST(HyenaTest, TheFilterIsFp32AndDoesNotDecay) {
  constexpr int64_t kWide = 64;
  const BuiltMixer built(MixerConfig("hyena", {{"filter_len", 128}}), kWide, at::kDouble, 0.02);
  for (const dist::ParamSpec& spec : built.parameters().specs()) {
    const bool projection = spec.name == "in_proj.weight" || spec.name == "o_proj.weight";
    EXPECT_EQ(spec.weight_decay, projection) << spec.name;
    if (spec.name.rfind("filter_fn.", 0) == 0) {
      EXPECT_EQ(spec.region, dist::Region::kFp32) << spec.name;
    }
  }
  // Projections, short filter, bias, positions, three layers with bias, frequencies, the last
  // layer.
  EXPECT_EQ(built.parameters().num_elements(), 4 * kWide * kWide + 4 * kWide + 3 * kWide * 4 +
                                                   kWide + 3 * 128 + (64 * 3 + 64) +
                                                   2 * (64 * 64 + 64) + 64 + 64 * kWide);
  // 64 normals with standard deviation 1. The bound is five standard errors.
  EXPECT_NEAR(built["filter_fn.bias"].std().item<double>(), 1, 0.45);
  EXPECT_EQ(built["filter_fn.implicit_filter.1.freq"].min().item<double>(), 1);
}

}  // namespace
}  // namespace halflife::model
