// The delta rule (Schlag et al., 2021) with LibTorch operations:
//
//   S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,   o_t = S_t^T q_t / sqrt(K)
//
// with |k_t| = 1 and beta_t = sigmoid(w x_t), per head.
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>

#include <cmath>

#include "model/mixers/linear/token_recurrence.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

struct ToyDeltaOptions : OptionsOf<ToyDeltaOptions> {
  int64_t num_heads = 4;
  std::vector<Option> Fields() override { return {{"num_heads", &num_heads}}; }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    problems.Require(sizes.model_dim % num_heads == 0, "num_heads ", num_heads,
                     " must divide model_dim ", sizes.model_dim);
  }
};

// Reads {q, k, v, beta}.
class DeltaRule : public TokenRecurrence {
 public:
  DeltaRule(int64_t num_heads, int64_t head_dim)
      : shape_{.num_heads = num_heads, .dim_k = head_dim, .dim_v = head_dim} {}
  StateShape state_shape() const override { return shape_; }

  at::Tensor Transition(const Token& token, const at::Tensor& state) const override {
    const at::Tensor &k = token[1], &beta = token[3];
    const at::Tensor recalled = at::matmul(k.unsqueeze(2), state);  // [B, H, 1, *]
    return state - (beta * k).unsqueeze(3) * recalled;
  }
  at::Tensor Update(const Token& token) const override {
    const at::Tensor &k = token[1], &v = token[2], &beta = token[3];
    return (beta * k).unsqueeze(3) * v.unsqueeze(2);
  }
  at::Tensor Read(const Token& token, const at::Tensor& state) const override {
    const double scale = 1 / std::sqrt(static_cast<double>(shape_.dim_k));
    return at::matmul(token[0].unsqueeze(2) * scale, state).squeeze(2);
  }

 private:
  StateShape shape_;
};

class ToyDelta : public Mixer {
 public:
  ToyDelta(const ToyDeltaOptions& options, const PartContext& context)
      : dim_(context.model_dim()),
        num_heads_(options.num_heads),
        rule_(num_heads_, dim_ / num_heads_),
        q_(DeclareMatrix(context, "q_proj.weight", {.out = dim_, .in = dim_})),
        k_(DeclareMatrix(context, "k_proj.weight", {.out = dim_, .in = dim_})),
        v_(DeclareMatrix(context, "v_proj.weight",
                         {.out = dim_, .in = dim_, .init_scale = context.value_init_scale})),
        beta_(DeclareMatrix(context, "b_proj.weight", {.out = num_heads_, .in = dim_})),
        out_(context, dim_, /*bias=*/false) {}

  MixerTraits traits() const override {
    return {.state = {{.name = "kv", .shape = {num_heads_, head_dim(), head_dim()}}}};
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const ScannedTokens scanned =
        ScanTokens(rule_, Project(call.x), call.slice,
                   call.carried() ? call.initial->tensors[0] : at::Tensor());
    MixerOutput result = {.y = out_(scanned.out.flatten(2)), .state = {}};
    if (call.want_state) result.state.tensors = {scanned.state};
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice&, MixerState& state) const override {
    return out_(StepToken(rule_, Project(x), state.tensors[0]).flatten(1));
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto dim = static_cast<double>(dim_), heads = static_cast<double>(num_heads_);
    return {.matmul = 2 * dim * (4 * dim + heads),
            .mixing = 8 * dim * static_cast<double>(head_dim())};
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    constexpr double kStates = 4;  // Stored by autograd.
    return 6 * static_cast<double>(dim_ * bytes_per_element) +
           kStates * 4 * static_cast<double>(dim_ * head_dim());
  }

 private:
  int64_t head_dim() const { return dim_ / num_heads_; }
  // {q, k, v [..., H, K], beta [..., H, 1]}
  std::vector<at::Tensor> Project(const at::Tensor& x) const {
    const std::vector<at::Tensor> y = ops::SharedInputLinear(x, {*q_, *k_, *v_, *beta_});
    const auto wide = [](const at::Tensor& z) { return z.to(ops::ComputeType(z)); };
    const at::Tensor k = wide(SplitHeads(y[1], head_dim()));
    return {SplitHeads(y[0], head_dim()), k * at::rsqrt(k.square().sum(-1, true) + 1e-6),
            SplitHeads(y[2], head_dim()), at::sigmoid(wide(y[3])).unsqueeze(-1)};
  }

  int64_t dim_, num_heads_;
  DeltaRule rule_;
  Parameter q_, k_, v_, beta_;
  OutputProjection out_;
};

}  // namespace

MixerVariant ToyDeltaVariant() {
  return MixerVariantOf<ToyDeltaOptions, ToyDelta>("toy_delta",
                                                   {{{"num_heads", 2}}, {{"num_heads", 4}}});
}

}  // namespace halflife::model
