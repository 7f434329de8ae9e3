#include "model/norms/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>

#include <optional>
#include <utility>

#include "ops/rows/rms_norm.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// RMS norm: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019). The weight is
// optional. A zero-centered weight w multiplies by 1 + w (NormWeight).
struct RmsNormOptions : OptionsOf<RmsNormOptions> {
  double eps = 1e-6;
  bool weight = true, zero_centered = false;
  std::vector<Option> Fields() override {
    return {{"eps", &eps}, {"weight", &weight}, {"zero_centered", &zero_centered}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(eps > 0, "eps is ", eps, ". Use a number above 0 (1e-6 is usual).");
    problems.Require(weight || !zero_centered,
                     "zero_centered without weight. Use both, or only weight.");
  }
};

class RmsNorm : public Norm {
 public:
  RmsNorm(const RmsNormOptions& options, const NormContext& context) : eps_(options.eps) {
    if (options.weight)
      weight_ = NormWeight(context.part, "weight", context.dim, options.zero_centered);
  }
  at::Tensor operator()(const at::Tensor& x) const override {
    return ops::RmsNorm(x, Weight(x), eps_);
  }
  at::Tensor AddAndNorm(at::Tensor& x, const at::Tensor& branch) const override {
    const auto next = ops::AddRmsNorm(x, branch, Weight(x), eps_);
    x = next.sum;
    return next.normed;
  }
  std::optional<ops::RowNorm> ToRowNorm() const override {
    if (!weight_.declared()) return std::nullopt;
    return ops::RowNorm{.weight = weight_.Factor(), .eps = eps_};
  }

 private:
  at::Tensor Weight(const at::Tensor& x) const {
    return weight_.declared()
               ? weight_.Factor()
               : at::ones({x.size(-1)},
                          x.options().dtype(ops::ComputeType(x)).requires_grad(false));
  }
  double eps_;
  NormWeight weight_;
};

// Layer norm: y = (x - mean) / sqrt(var + eps) * weight + bias (Ba et al., 2016). Weight and bias
// are optional.
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
    if (options.bias) bias_ = DeclareFp32(context.part, "bias", {context.dim}, Init::Zeros());
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

// No norm: returns its input. Used as the final norm of models that have none before the head.
struct NoNormOptions : OptionsOf<NoNormOptions> {};

class NoNorm : public Norm {
 public:
  NoNorm(const NoNormOptions&, const NormContext&) {}
  at::Tensor operator()(const at::Tensor& x) const override { return x; }
};

using NormVariant = Variant<Norm, NormContext>;

std::vector<NormVariant> NormVariants() {
  return {VariantOf<RmsNormOptions, RmsNorm, Norm, NormContext>("rms_norm"),
          VariantOf<LayerNormOptions, LayerNorm, Norm, NormContext>("layer_norm"),
          VariantOf<NoNormOptions, NoNorm, Norm, NormContext>("none")};
}

}  // namespace

const PartKind kNorms = {"norm", "rms_norm", [] { return InfosOf(NormVariants()); }};

at::Tensor Norm::AddAndNorm(at::Tensor& x, const at::Tensor& branch) const {
  x = x + branch;
  return (*this)(x);
}

std::unique_ptr<Norm> MakeNorm(const PartConfig& config, const PartContext& context, int64_t dim) {
  return MakePart(NormVariants(), config, context.sizes, NormContext{context, dim});
}

const at::Tensor& NormedInput::Tensor() const {
  if (pending()) {
    const at::Tensor branch = std::exchange(branch_, {});
    normed_ = branch.defined() ? norm_->AddAndNorm(*x_, branch) : (*norm_)(*x_);
  }
  return normed_;
}

std::optional<ops::RowOutputs> NormedInput::Launch(const std::vector<at::Tensor>& matrices,
                                                   bool swiglu) const {
  if (!ops::HasRowProducts(pending() ? *x_ : normed_, matrices)) return std::nullopt;
  ops::RowInput input;
  if (pending()) input = {.x = *x_, .branch = branch_, .norm = norm_->ToRowNorm()};
  const bool norms = pending() && ops::HasNormedRowProducts(input, matrices);
  if (!norms) input = {.x = Tensor()};
  std::vector<ops::RowWeight> weights;
  if (swiglu) {
    weights.push_back({.weight = matrices[0], .up = matrices[1]});
  } else {
    for (const at::Tensor& matrix : matrices) weights.push_back({.weight = matrix});
  }
  ops::RowOutputs outputs = ops::RowProducts(input, weights);
  if (!norms) return outputs;
  branch_.reset();
  if (outputs.sum.defined()) *x_ = outputs.sum;
  normed_ = outputs.normed;
  return outputs;
}

std::vector<ops::LinearPart> NormedInput::Products(const std::vector<at::Tensor>& weights) const {
  const std::optional<ops::RowOutputs> outputs = Launch(weights, /*swiglu=*/false);
  if (!outputs) return ops::SharedInputParts(Tensor(), weights);
  std::vector<ops::LinearPart> parts;
  for (const at::Tensor& y : outputs->ys) parts.push_back({.y = y});
  return parts;
}

std::optional<at::Tensor> NormedInput::SwiGluProducts(const at::Tensor& gate,
                                                      const at::Tensor& up) const {
  const std::optional<ops::RowOutputs> outputs = Launch({gate, up}, /*swiglu=*/true);
  return outputs ? std::optional(outputs->ys[0]) : std::nullopt;
}

}  // namespace halflife::model
