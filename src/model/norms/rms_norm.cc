// RMS norm: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019). The weight is
// optional.
#include <ATen/ops/ones.h>

#include "model/norms/variants.h"
#include "ops/rows/rms_norm.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

struct RmsNormOptions : OptionsOf<RmsNormOptions> {
  double eps = 1e-6;
  bool weight = true;
  std::vector<Option> Fields() override { return {{"eps", &eps}, {"weight", &weight}}; }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(eps > 0, "eps is ", eps, ". Use a number above 0 (1e-6 is usual).");
  }
};

class RmsNorm : public Norm {
 public:
  RmsNorm(const RmsNormOptions& options, const NormContext& context) : eps_(options.eps) {
    if (options.weight) weight_ = DeclareNorm(context.part, "weight", context.dim);
  }
  at::Tensor operator()(const at::Tensor& x) const override {
    return ops::RmsNorm(x, Weight(x), eps_);
  }
  at::Tensor AddAndNorm(at::Tensor& x, const at::Tensor& branch) const override {
    const auto next = ops::AddRmsNorm(x, branch, Weight(x), eps_);
    x = next.sum;
    return next.normed;
  }

 private:
  at::Tensor Weight(const at::Tensor& x) const {
    return weight_.declared()
               ? *weight_
               : at::ones({x.size(-1)},
                          x.options().dtype(ops::ComputeType(x)).requires_grad(false));
  }
  double eps_;
  Parameter weight_;
};

}  // namespace

NormVariant RmsNormVariant() {
  return VariantOf<RmsNormOptions, RmsNorm, Norm, NormContext>("rms_norm");
}

}  // namespace halflife::model
