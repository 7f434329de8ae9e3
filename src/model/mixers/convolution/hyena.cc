// Hyena of order 2 (Poli et al., 2023), as in Zoology: three projections with a short convolution,
// and two gates with a convolution as long as the row between them. A sine network computes the
// long filter from the position. An exponential window with one rate per channel multiplies it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/sin.h>

#include <cmath>
#include <optional>
#include <vector>

#include "model/mixers/convolution/long_convolution.h"
#include "model/mixers/convolution/short_convolution.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/convolution/fft_conv.h"
#include "ops/linear/linear.h"

namespace halflife::model {
namespace {

constexpr int64_t kInnerLayers =
    2;  // number of layers between the first and the last one of the filter network
// The window of the first channel decays to kWindowEnd after kSlowest filter lengths (beyond the
// end), that of the last channel after kFastest filter lengths.
constexpr double kWindowEnd = 0.01, kSlowest = 1.5, kFastest = 0.3;

struct HyenaOptions : OptionsOf<HyenaOptions> {
  int64_t filter_len = 1024;
  int64_t filter_width = 64;
  int64_t conv_size = 3;
  std::vector<Option> Fields() override {
    return {{"filter_len", &filter_len, {.min = 2}},
            {"filter_width", &filter_width},
            {"conv_size", &conv_size}};
  }
};

// h_t = exp(-t |a| / (filter_len - 1)) W_n sin(f * (... sin(f * (W_1 z_t + b_1)))), one filter per
// channel. The features z of the positions are parameters, too.
class SineFilter {
 public:
  SineFilter(const HyenaOptions& options, const PartContext& context, int64_t dim)
      : length_(options.filter_len), dim_(dim) {
    const int64_t width = options.filter_width, length = length_;
    bias_ = DeclareFp32(context, "bias", {dim}, Init::Normal(1));
    features_ = DeclareFp32(
        context, "pos_emb.z", {1, length, kPositionFeatures},
        Init::Of([length](int64_t element, double) { return PositionFeature(element, length); }));
    const PartContext network = context.Below("implicit_filter.");
    layers_.emplace_back(network, "0", MatrixShape{.out = width, .in = kPositionFeatures},
                         /*bias=*/true);
    frequencies_ = DeclareFp32(context, "implicit_filter.1.freq", {width}, Init::Ones());
    for (int64_t i = 1; i <= kInnerLayers; ++i)
      layers_.emplace_back(network, Concat(2 * i), MatrixShape{.out = width, .in = width},
                           /*bias=*/true);
    last_.emplace(network, Concat(2 * kInnerLayers + 2), MatrixShape{.out = dim, .in = width},
                  /*bias=*/false);
  }

  // Returns the filter at the first `num_tokens` positions without the window, [num_tokens, D].
  at::Tensor operator()(int64_t num_tokens) const {
    RequireWithinFilter("hyena", num_tokens, length_);
    at::Tensor a = (*features_)[0].narrow(0, 0, num_tokens);
    for (const FilterLayer& layer : layers_) a = at::sin(*frequencies_ * layer(a));
    return (*last_)(a);
  }
  ops::FilterWindow window() const {
    const double slow = std::log(kWindowEnd) / kSlowest, fast = std::log(kWindowEnd) / kFastest;
    const double per_token = 1 / static_cast<double>(length_ - 1);
    const double step = dim_ > 1 ? (fast - slow) / static_cast<double>(dim_ - 1) : 0;
    return {.first = slow * per_token, .step = step * per_token};
  }
  // The additional weight of a token's own input, [D].
  const at::Tensor& bias() const { return *bias_; }
  int64_t length() const { return length_; }

 private:
  int64_t length_, dim_;
  Parameter bias_, features_, frequencies_;
  std::vector<FilterLayer> layers_;
  std::optional<FilterLayer> last_;
};

class Hyena : public Mixer {
 public:
  Hyena(const HyenaOptions& options, const PartContext& context)
      : dim_(context.model_dim()),
        filter_width_(options.filter_width),
        in_(DeclareMatrix(context, "in_proj.weight",
                          {.out = 3 * dim_,
                           .in = dim_,
                           .init_scale = context.value_init_scale,
                           .parts = EqualParts(3, dim_)})),
        in_bias_(DeclareBias(context, "in_proj.bias", 3 * dim_)),
        conv_(context, "short_filter",
              {.channels = 3 * dim_, .taps = options.conv_size, .bias = true}),
        filter_(options, context.Below("filter_fn."), dim_),
        out_(context, dim_, /*bias=*/true) {}

  MixerTraits traits() const override {
    MixerTraits traits = LongConvolutionTraits(dim_, filter_.length());
    traits.state.push_back(conv_.tail("tail"));
    return traits;
  }

  MixerOutput Forward(const MixerCall& call) const override {
    RequireOneDocument("hyena", call.slice);
    const bool carried = call.carried();
    const auto before = [&](size_t i) { return carried ? call.initial->tensors[i] : at::Tensor(); };
    const int64_t num_past = call.num_past;
    MixerOutput result;
    if (call.want_state) result.state.tensors.resize(2);
    const auto after = [&](size_t i) {
      return call.want_state ? &result.state.tensors[i] : nullptr;
    };
    const at::Tensor branches =
        conv_({.x = Project(call.x), .slice = call.slice, .tail = before(1)}, after(1));
    const at::Tensor filter = filter_(num_past + call.slice.seq_len);
    const Split split(branches);
    const at::Tensor sums =
        ConvolveRows({.x = split.u,
                      .filter = filter,
                      .window = filter_.window(),
                      .skip = filter_.bias(),
                      .past = num_past > 0 ? before(0).narrow(1, 0, num_past) : at::Tensor()},
                     after(0));
    result.y = out_(split.gate * sums);
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override {
    const Split split(conv_.Step(Project(x), state.tensors[1]));
    const at::Tensor sum = ConvolveStep({.x = split.u,
                                         .filter = filter_(token.begin + 1),
                                         .window = filter_.window(),
                                         .skip = filter_.bias()},
                                        token.begin, state.tensors[0]);
    return out_(split.gate * sum);
  }

  FlopCount FlopsPerToken(int64_t seq_len) const override {
    const auto dim = static_cast<double>(dim_), width = static_cast<double>(filter_width_);
    // The filter is computed once per batch, but it is counted for every row.
    const double filter = width * (kPositionFeatures + kInnerLayers * width + dim);
    return {.matmul = 2 * (4 * dim * dim + filter),
            .mixing = conv_.flops_per_token() + dim * (LongConvolutionFlops(seq_len) + 4)};
  }
  double WorkspaceBytes(const GpuBatch& batch) const override {
    return LongConvolutionWorkspaceBytes(batch, dim_);
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    // x, the three branches before and after the short convolution, its gated output and that of
    // the long convolution; the long convolution's input in fp32. The filter is shared by all rows
    // and not counted.
    return static_cast<double>(dim_ * (9 * bytes_per_element + 4));
  }

 private:
  // Splits the branches [..., 3 D].
  struct Split {
    explicit Split(const at::Tensor& branches) : Split(branches.chunk(3, -1)) {}
    at::Tensor u;     // x1 * v, the input of the long convolution
    at::Tensor gate;  // x2

   private:
    explicit Split(const std::vector<at::Tensor>& parts) : u(parts[0] * parts[2]), gate(parts[1]) {}
  };
  at::Tensor Project(const at::Tensor& x) const { return AddBias(ops::Linear(x, *in_), in_bias_); }

  int64_t dim_, filter_width_;
  Parameter in_, in_bias_;
  ShortConvolution conv_;
  SineFilter filter_;
  OutputProjection out_;
};

}  // namespace

MixerVariant HyenaVariant() { return MixerVariantOf<HyenaOptions, Hyena>("hyena"); }

}  // namespace halflife::model
