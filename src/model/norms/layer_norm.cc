// Layer norm: y = (x - mean) / sqrt(var + eps) * weight + bias (Ba et al., 2016). Weight and bias
// are optional.
#include <ATen/ops/layer_norm.h>

#include <optional>

#include "model/norms/variants.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

struct LayerNormOptions : OptionsOf<LayerNormOptions> {
  double eps = 1e-5;
  bool weight = true, bias = true;
  std::vector<Option> Fields() override {
    return {{"eps", &eps}, {"weight", &weight}, {"bias", &bias}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(eps > 0, "eps is ", eps, ". Use a number above 0 (1e-5 is usual).");
    problems.Require(weight || !bias, "bias without weight. Use both, neither, or only weight.");
  }
};

class LayerNorm : public Norm {
 public:
  LayerNorm(const LayerNormOptions& options, const NormContext& context)
      : eps_(options.eps), dim_(context.dim) {
    if (options.weight) weight_ = DeclareNorm(context.part, "weight", context.dim);
    if (options.bias)
      bias_ = context.part.parameters->Declare({.name = context.part.prefix + "bias",
                                                .shape = {context.dim},
                                                .region = dist::Region::kFp32},
                                               Init::Zeros());
  }

  // Computes in fp32 like its parameters (in fp64 if x is fp64).
  at::Tensor operator()(const at::Tensor& x) const override {
    const auto maybe = [](const Parameter& parameter) {
      return parameter.declared() ? std::optional<at::Tensor>(*parameter) : std::nullopt;
    };
    return at::layer_norm(x.to(ops::ComputeType(x)), {dim_}, maybe(weight_), maybe(bias_), eps_)
        .to(x.scalar_type());
  }

 private:
  double eps_;
  int64_t dim_;
  Parameter weight_, bias_;
};

}  // namespace

NormVariant LayerNormVariant() {
  return VariantOf<LayerNormOptions, LayerNorm, Norm, NormContext>("layer_norm");
}

}  // namespace halflife::model
