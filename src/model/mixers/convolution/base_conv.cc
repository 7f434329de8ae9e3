// BaseConv (Arora et al., 2023): y = conv(u) * (W u + b) + u. conv is a depthwise causal
// convolution, either with a few taps or as long as the row. The long filter is computed by a small
// network from the position. Parameters are named as in Zoology's layer. u is the block's normed
// input, so it is added in addition to the residual stream.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include <optional>

#include "model/mixers/convolution/long_convolution.h"
#include "model/mixers/convolution/short_convolution.h"
#include "model/mixers/variants.h"
#include "ops/linear/linear.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {
namespace {

constexpr int64_t kFilterWidth = 16;  // inner channels of the filter network

struct BaseConvOptions : OptionsOf<BaseConvOptions> {
  int64_t kernel_size = 3;  // number of taps; -1: as long as the row
  int64_t filter_len = 1024;
  bool use_act = false;
  std::vector<Option> Fields() override {
    return {{"kernel_size", &kernel_size, {.min = -1}},
            {"filter_len", &filter_len, {.min = 2}},
            {"use_act", &use_act}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(kernel_size != 0,
                     "option kernel_size is 0. Use a number of taps, usually 3, or -1 for a filter "
                     "as long as the row.");
  }
};

// The long filter of every channel, h_t = W2 relu(W1 features_t + b1) + b2.
class ImplicitFilter {
 public:
  ImplicitFilter(const PartContext& context, int64_t dim, int64_t filter_len)
      : features_(at::empty({filter_len, kPositionFeatures}, at::kDouble)),
        first_(context, "0", {.out = kFilterWidth, .in = kPositionFeatures}, /*bias=*/true),
        second_(context, "2", {.out = dim, .in = kFilterWidth}, /*bias=*/true) {
    auto* const feature = features_.mutable_data_ptr<double>();
    for (int64_t i = 0; i < features_.numel(); ++i) feature[i] = PositionFeature(i, filter_len);
  }

  // Returns the filter at the first `num_tokens` positions, [num_tokens, D], in the compute type of
  // x.
  at::Tensor operator()(int64_t num_tokens, const at::Tensor& x) const {
    RequireWithinFilter("base_conv", num_tokens, features_.size(0));
    const std::span<const double> all(features_.const_data_ptr<double>(), features_.numel());
    const at::Tensor features =
        ops::ConstantsOn(x.device(), all, ops::ComputeType(x)).view(features_.sizes());
    return second_(at::relu(first_(features.narrow(0, 0, num_tokens))));
  }
  int64_t length() const { return features_.size(0); }

 private:
  at::Tensor features_;  // [filter_len, 3] fp64
  FilterLayer first_, second_;
};

class BaseConv : public Mixer {
 public:
  BaseConv(const BaseConvOptions& options, const PartContext& context)
      : use_act_(options.use_act),
        dim_(context.model_dim()),
        projection_(DeclareMatrix(context, "projection.weight", {.out = dim_, .in = dim_})),
        bias_(DeclareBias(context, "projection.bias", dim_)) {
    if (options.kernel_size < 0) {
      filter_.emplace(context.Below("conv.mlp."), dim_, options.filter_len);
    } else {
      conv_.emplace(context, "conv.conv",
                    ConvolutionShape{.channels = dim_,
                                     .taps = options.kernel_size,
                                     .bias = true,
                                     .silu = options.use_act});
    }
  }

  MixerTraits traits() const override {
    if (filter_) return LongConvolutionTraits(dim_, filter_->length());
    return {.state = {conv_->tail("tail")}};
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const bool carried = call.carried();
    const at::Tensor before = carried ? call.initial->tensors[0] : at::Tensor();
    MixerOutput result;
    if (call.want_state) result.state.tensors.resize(1);
    at::Tensor* const after = call.want_state ? &result.state.tensors[0] : nullptr;
    if (!filter_) {
      result.y = Join(call.x, (*conv_)({.x = call.x, .slice = call.slice, .tail = before}, after));
      return result;
    }
    RequireOneDocument("base_conv", call.slice);
    const int64_t num_past = call.num_past;
    const at::Tensor sums =
        ConvolveRows({.x = call.x,
                      .filter = (*filter_)(num_past + call.slice.seq_len, call.x),
                      .past = num_past > 0 ? before.narrow(1, 0, num_past) : at::Tensor()},
                     after);
    result.y = Join(call.x, WithSkip(sums, call.x));
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override {
    if (!filter_) return Join(x, conv_->Step(x, state.tensors[0]));
    const at::Tensor sum = ConvolveStep({.x = x, .filter = (*filter_)(token.begin + 1, x)},
                                        token.begin, state.tensors[0]);
    return Join(x, WithSkip(sum, x));
  }

  FlopCount FlopsPerToken(int64_t seq_len) const override {
    const auto dim = static_cast<double>(dim_);
    if (!filter_) return {.matmul = 2 * dim * dim, .mixing = conv_->flops_per_token() + 2 * dim};
    // The filter is computed once per batch, but it is counted for every row.
    return {.matmul =
                2 * dim * dim + 2 * static_cast<double>(kFilterWidth * (kPositionFeatures + dim_)),
            .mixing = dim * (LongConvolutionFlops(seq_len) + 3)};
  }
  double WorkspaceBytes(const GpuBatch& batch) const override {
    return filter_ ? LongConvolutionWorkspaceBytes(batch, dim_) : 0;
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    // u, the two factors, and the inputs of their activations.
    const int64_t tensors = use_act_ ? (filter_ ? 5 : 4) : 3;
    return static_cast<double>(tensors * dim_ * bytes_per_element);
  }

 private:
  // Adds the input u and the activation to a long convolution. Short convolutions do not add u, and
  // apply the activation themselves.
  at::Tensor WithSkip(const at::Tensor& sums, const at::Tensor& u) const {
    return use_act_ ? at::silu(sums + u) : sums + u;
  }
  // conv(u) * (W u + b) + u.
  at::Tensor Join(const at::Tensor& u, const at::Tensor& conv) const {
    const at::Tensor gate = AddBias(ops::Linear(u, *projection_), bias_);
    return conv * (use_act_ ? at::silu(gate) : gate) + u;
  }

  bool use_act_;
  int64_t dim_;
  Parameter projection_, bias_;
  std::optional<ShortConvolution> conv_;  // exactly one of the two is set
  std::optional<ImplicitFilter> filter_;
};

}  // namespace

MixerVariant BaseConvVariant() { return MixerVariantOf<BaseConvOptions, BaseConv>("base_conv"); }

}  // namespace halflife::model
