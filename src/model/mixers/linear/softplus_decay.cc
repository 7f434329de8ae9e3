#include "model/mixers/linear/softplus_decay.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sigmoid.h>

#include <algorithm>
#include <cmath>

#include "model/mixers/recurrent/step_bias.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/decay_gate.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// The initial step sizes softplus(dt_bias) are log-uniform in this range (Gu and Dao, 2024).
constexpr double kLeastStep = 1e-3, kMostStep = 0.1;

// `low` must be above 0: the logarithm of A = 0 is -inf, and such a head never recovers.
Init InitOfLogA(double low, double high) {
  return Init::Of([=](int64_t, double uniform) { return std::log(low + uniform * (high - low)); });
}

class SoftplusDecay : public LogDecay {
 public:
  SoftplusDecay(const SoftplusDecayForm& form, const PartContext& context)
      : form_(form),
        width_(form.num_heads * std::max<int64_t>(form.num_channels, 1)),
        model_dim_(context.model_dim()) {
    const int64_t inner = form.rank > 0 ? form.rank : width_;
    in_ = DeclareMatrix(context, form.rank > 0 ? "f_proj.0.weight" : "a_proj.weight",
                        {.out = inner, .in = model_dim_});
    if (form.rank > 0)
      out_ = DeclareMatrix(context, "f_proj.1.weight", {.out = width_, .in = form.rank});
    const auto declare = [&](const char* name, int64_t size, const Init& init) {
      return context.parameters->Declare(
          {.name = context.prefix + name, .shape = {size}, .region = dist::Region::kFp32}, init);
    };
    log_a_ = declare("A_log", form.num_heads, InitOfLogA(form.initial_min, form.initial_max));
    bias_ = declare("dt_bias", width_, BiasOfSteps(kLeastStep, kMostStep));
  }

  std::vector<at::Tensor> Weights() const override { return {*in_}; }

  at::Tensor operator()(const at::Tensor&, std::span<const at::Tensor> products) const override {
    at::Tensor z = products[0];
    if (out_.declared()) z = ops::Linear(z, *out_);
    at::Tensor a = at::exp(*log_a_);  // [H]
    if (per_channel()) a = a.unsqueeze(-1);
    const auto heads = [&](const at::Tensor& x) {
      return per_channel() ? SplitHeads(x, form_.num_channels) : x;
    };
    if (form_.lower_bound < 0) {
      const at::Tensor shifted = z.to(ops::ComputeType(z)) + *bias_;
      return at::sigmoid(heads(shifted) * a) * form_.lower_bound;
    }
    // -softplus(y) = ln sigmoid(-y)
    return heads(ops::DecayGate(-z, -*bias_, {})) * a;
  }

  bool per_channel() const override { return form_.num_channels > 0; }
  int64_t num_matrix_elements() const override {
    return form_.rank > 0 ? form_.rank * (model_dim_ + width_) : model_dim_ * width_;
  }
  // The products, the negated logits.
  int64_t num_activations() const override { return form_.rank + width_; }
  // The gate before and after its factor.
  int64_t num_fp32_activations() const override { return 2 * width_; }

 private:
  SoftplusDecayForm form_;
  int64_t width_, model_dim_;
  Parameter in_, out_, log_a_, bias_;
};

}  // namespace

std::unique_ptr<LogDecay> MakeSoftplusDecay(const SoftplusDecayForm& form,
                                            const PartContext& context) {
  return std::make_unique<SoftplusDecay>(form, context);
}

}  // namespace halflife::model
