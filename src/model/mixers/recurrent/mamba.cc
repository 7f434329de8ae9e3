// Mamba (Gu and Dao, 2023): a short convolution, then a selective scan with N states per channel,
// whose step size, input and output depend on the token, gated by SiLU. Parameters are named as in
// transformers' Mamba.
//
// Initial values (`mamba_init`):
//   canonical   The authors' values: step sizes are log-uniform between 0.001 and 0.1.
//   fork        The values of the training code of ReBased (Aksenov et al., 2024), which replaces
//               the authors' values by normal matrices and zero biases. All step sizes are then
//               0.69, and the slowest state halves with every token.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/scans/selective_scan/selective_scan_args.h"
#include "model/mixers/convolution/short_convolution.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/swiglu.h"
#include "ops/scans/selective_scan.h"

namespace halflife::model {
namespace {

struct MambaOptions : OptionsOf<MambaOptions> {
  int64_t d_state = 16, d_conv = 4, expand = 2;
  int64_t dt_rank = 0;  // 0: model_dim / 16, rounded up
  std::string mamba_init = "canonical";

  std::vector<Option> Fields() override {
    return {{"d_state", &d_state, {.max = kernels::kScanMaxStates}},
            {"d_conv", &d_conv},
            {"expand", &expand},
            {"dt_rank", &dt_rank, {.min = 0}},
            {"mamba_init", &mamba_init, {.choices = {"canonical", "fork"}}}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    if (dt_rank == 0) dt_rank = (sizes.model_dim + 15) / 16;
    const int64_t most = std::max<int64_t>(1, kMaxWidth / std::max<int64_t>(1, sizes.model_dim));
    problems.Require(expand <= most, "expand ", expand, " of model_dim ", sizes.model_dim, " is ",
                     expand * sizes.model_dim, " channels. Use an expand of at most ", most, ".");
  }
};

class Mamba : public Mixer {
 public:
  Mamba(const MambaOptions& options, const PartContext& context)
      : sizes_(options), dim_(context.model_dim()), inner_(options.expand * dim_) {
    const bool fork = options.mamba_init == "fork";
    const auto matrix = [&](const char* name, MatrixShape shape) {
      if (!fork) shape.init = Init::UniformOfFanIn(shape.in);
      return DeclareMatrix(context, name, shape);
    };
    const int64_t rank = sizes_.dt_rank, states = sizes_.d_state;
    in_ = matrix("in_proj.weight", {.out = 2 * inner_, .in = dim_, .parts = EqualParts(2, inner_)});
    conv_ = ShortConvolution(
        context, "conv1d", {.channels = inner_, .taps = sizes_.d_conv, .bias = true, .silu = true});
    select_ =
        matrix("x_proj.weight", {.out = rank + 2 * states,
                                 .in = inner_,
                                 .parts = {{.rows = rank}, {.rows = states}, {.rows = states}}});
    step_ = matrix("dt_proj.weight", {.out = inner_, .in = rank});
    step_bias_ = DeclareFp32(context, "dt_proj.bias", {inner_},
                             fork ? Init::Zeros() : BiasOfSteps(0.001, 0.1));
    a_log_ =
        DeclareFp32(context, "A_log", {inner_, states}, Init::Of([states](int64_t element, double) {
                      return std::log(1.0 + static_cast<double>(element % states));
                    }));
    skip_ = DeclareFp32(context, "D", {inner_}, Init::Ones());
    OutputForm out = {.name = "out_proj"};
    if (!fork)
      out.init = Init::UniformOfFanIn(inner_)
                     .Scaled(1 / std::sqrt(static_cast<double>(context.sizes.num_layers)))
                     .Scaled(context.output_init_scale);
    out_ = OutputProjection(context, inner_, /*bias=*/false, out);
  }

  MixerTraits traits() const override {
    MixerTraits traits;
    traits.state = {{.name = "ssm", .shape = {inner_, sizes_.d_state}}, conv_.tail("x_tail")};
    return traits;
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const bool carried = call.carried();
    const std::vector<ops::LinearPart> in = Enter(call.x);
    at::Tensor tail;  // after the slice
    const Selected selected =
        Select(conv_({.x = in[0].y,
                      .slice = call.slice,
                      .tail = carried ? call.initial->tensors[1] : at::Tensor(),
                      .x_gradient = in[0].gradient},
                     call.want_state ? &tail : nullptr));
    const auto [y, state] =
        ops::SelectiveScan({.x = selected.x,
                            .delta = selected.delta,
                            .delta_bias = *step_bias_,
                            .a = *a_log_,
                            .negative_exp = true,
                            .b = selected.b,
                            .c = selected.c,
                            .skip = *skip_,
                            .b_gradient = selected.b_gradient,
                            .c_gradient = selected.c_gradient,
                            .starts = call.slice.starts,
                            .initial = carried ? call.initial->tensors[0] : at::Tensor(),
                            .segment = call.slice.segment});
    MixerOutput result = {.y = out_(ops::SwiGlu(in[1].y, y, in[1].gradient)), .state = {}};
    if (call.want_state) result.state.tensors = {state, tail};
    return result;
  }

  at::Tensor Step(const at::Tensor& u, const SequenceSlice&, MixerState& state) const override {
    const std::vector<ops::LinearPart> in = Enter(u);
    const Selected selected = Select(conv_.Step(in[0].y, state.tensors[1]));
    const at::Tensor y = ops::SelectiveScanStep({.x = selected.x,
                                                 .delta = selected.delta,
                                                 .delta_bias = *step_bias_,
                                                 .a = *a_log_,
                                                 .negative_exp = true,
                                                 .b = selected.b,
                                                 .c = selected.c,
                                                 .skip = *skip_},
                                                state.tensors[0]);
    return out_(ops::SwiGlu(in[1].y, y));
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const int64_t elements = inner_ * (3 * dim_ + 2 * sizes_.dt_rank + 2 * sizes_.d_state);
    // Each state: its decay (an exponential counts as one), input and output. Then the taps.
    return {.matmul = 2 * static_cast<double>(elements),
            .mixing = static_cast<double>(inner_ * 7 * sizes_.d_state) + conv_.flops_per_token()};
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    // u; x before and after the convolution, the gate, the step, y and gated y; x_proj's output.
    const int64_t elements = dim_ + 6 * inner_ + sizes_.dt_rank + 2 * sizes_.d_state;
    constexpr double kTokensPerKeptState = 32;
    return static_cast<double>(elements * bytes_per_element) +
           4 * static_cast<double>(inner_ * sizes_.d_state) / kTokensPerKeptState;
  }

 private:
  // u [..., D] -> x and the gate z, [..., I] each.
  std::vector<ops::LinearPart> Enter(const at::Tensor& u) const {
    return ops::LinearInParts(u, *in_, {inner_, inner_});
  }
  struct Selected {
    at::Tensor x;      // [..., I], the input of the scan
    at::Tensor delta;  // [..., I], step sizes before bias and softplus
    at::Tensor b, c;   // [..., N]
    ops::ColumnSlice b_gradient, c_gradient;
  };
  Selected Select(const at::Tensor& x) const {
    const int64_t rank = sizes_.dt_rank, states = sizes_.d_state;
    const auto [again, parts] = ops::LinearAndInput(x, *select_, {rank, states, states});
    return {.x = again,
            .delta = ops::Linear(parts[0].y, *step_, parts[0].gradient),
            .b = parts[1].y,
            .c = parts[2].y,
            .b_gradient = parts[1].gradient,
            .c_gradient = parts[2].gradient};
  }

  MambaOptions sizes_;
  int64_t dim_, inner_;
  Parameter in_, select_, step_, step_bias_, a_log_, skip_;
  ShortConvolution conv_;
  OutputProjection out_;
};

}  // namespace

MixerVariant MambaVariant() { return MixerVariantOf<MambaOptions, Mamba>("mamba"); }

}  // namespace halflife::model
