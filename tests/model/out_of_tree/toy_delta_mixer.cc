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

#include "model/mixers/linear/linear_mixer.h"
#include "model/mixers/linear/token_recurrence.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

struct ToyDeltaOptions : OptionsOf<ToyDeltaOptions, LinearHeadOptions> {
  ToyDeltaOptions() : OptionsOf(/*heads=*/4, /*k=*/1, /*v=*/1) {}
  std::vector<Option> Fields() override { return {{"num_heads", &num_heads}}; }
};

class DeltaRule : public TokenRecurrence {
 public:
  DeltaRule(const PartContext& context, const RecurrenceHeads& heads)
      : shape_{.num_heads = heads.num_heads,
               .dim_k = heads.num_features,
               .dim_v = heads.head_dim_v},
        model_dim_(context.model_dim()),
        beta_(DeclareMatrix(context, "b_proj.weight", {.out = heads.num_heads, .in = model_dim_})) {
  }
  StateShape state_shape() const override { return shape_; }

  std::vector<at::Tensor> Weights() const override { return {*beta_}; }
  // Returns {q, k, v [B, T, H, K or V], beta [B, T, H, 1]}.
  std::vector<at::Tensor> Prepare(const RecurrenceInputs& inputs) const override {
    const auto wide = [](const at::Tensor& x) { return x.to(ops::ComputeType(x)); };
    const at::Tensor k = wide(inputs.k.x);
    return {inputs.q.x, k * at::rsqrt(k.square().sum(-1, true) + 1e-6), inputs.v,
            at::sigmoid(wide(inputs.products[0].y)).unsqueeze(-1)};
  }

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

  RecurrenceCost CostPerToken(int64_t) const override {
    const auto state = static_cast<double>(shape_.num_heads * shape_.dim_k * shape_.dim_v);
    constexpr double kStates = 4;  // that autograd keeps
    return {.matrix_elements = model_dim_ * shape_.num_heads,
            .mixing_flops = 8 * state,
            .activations = static_cast<double>(shape_.num_heads * (shape_.dim_k + 1)),
            .fp32_activations = kStates * state};
  }

 private:
  StateShape shape_;
  int64_t model_dim_;
  Parameter beta_;
};

class ToyDelta : public LinearMixer {
 public:
  ToyDelta(const ToyDeltaOptions& options, const PartContext& context)
      : LinearMixer(options.heads(), context,
                    {.make_recurrence =
                         [](const PartContext& parts, const RecurrenceHeads& heads) {
                           return std::make_unique<DeltaRule>(parts, heads);
                         },
                     .output_gate = OutputGate::kNone}) {}
};

}  // namespace

MixerVariant ToyDeltaVariant() { return MixerVariantOf<ToyDeltaOptions, ToyDelta>("toy_delta"); }

}  // namespace halflife::model
