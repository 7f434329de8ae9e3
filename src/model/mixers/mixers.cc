#include "model/mixers/mixers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include <cmath>

#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/torch/dispatch.h"

namespace halflife::model {

HeadSizes ReadHeadSizes(MixerOptions& options, int64_t model_dim, const HeadDefaults& defaults) {
  HeadSizes sizes;
  const double expand_k = options.Double("expand_k", defaults.expand_k);
  const double expand_v = options.Double("expand_v", defaults.expand_v);
  sizes.num_heads = options.Int("num_heads", defaults.num_heads);
  sizes.num_kv_heads = options.Int("num_kv_heads", sizes.num_heads);
  const double dim_k = static_cast<double>(model_dim) * expand_k,
               dim_v = static_cast<double>(model_dim) * expand_v;
  const bool sane = dim_k >= 0 && dim_k <= kMaxWidth && dim_v >= 0 && dim_v <= kMaxWidth;
  options.Require(sane, "expand_k ", expand_k, " and expand_v ", expand_v,
                  "; factors of model_dim, e.g. 0.5 and 1, would work (widths up to ", kMaxWidth,
                  ")");
  if (!sane) return sizes;
  const auto key_dim = static_cast<int64_t>(dim_k), value_dim = static_cast<int64_t>(dim_v);
  options.Require(dim_k == std::floor(dim_k) && dim_v == std::floor(dim_v), "model_dim ", model_dim,
                  " times expand_k ", expand_k, " and expand_v ", expand_v,
                  " must be whole numbers");
  const bool heads_fit = key_dim > 0 && value_dim > 0 && key_dim % sizes.num_heads == 0 &&
                         value_dim % sizes.num_heads == 0;
  options.Require(heads_fit, "num_heads ", sizes.num_heads, " must divide the key width ", key_dim,
                  " and the value width ", value_dim);
  options.Require(sizes.num_heads % sizes.num_kv_heads == 0, "num_kv_heads ", sizes.num_kv_heads,
                  " must divide num_heads ", sizes.num_heads);
  if (heads_fit) {
    sizes.head_dim_k = key_dim / sizes.num_heads;
    sizes.head_dim_v = value_dim / sizes.num_heads;
  }
  return sizes;
}

Parameter DeclareMatrix(const MixerContext& context, const std::string& name, int64_t out,
                        int64_t in) {
  return context.parameters->Declare(
      {.name = context.prefix + name, .shape = {out, in}, .weight_decay = true},
      Init::Normal(context.initializer_range));
}

Parameter DeclareNorm(const MixerContext& context, const std::string& name, int64_t dim) {
  return context.parameters->Declare(
      {.name = context.prefix + name, .shape = {dim}, .region = dist::Region::kFp32}, Init::Ones());
}

Parameter DeclareBias(const MixerContext& context, const std::string& name, int64_t dim) {
  return context.parameters->Declare({.name = context.prefix + name, .shape = {dim}},
                                     Init::Zeros());
}

at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim) {
  return x.unflatten(-1, {-1, head_dim});
}

at::Tensor RepeatHeads(const at::Tensor& x, int64_t num_heads) {
  const int64_t group = num_heads / x.size(2);
  if (group == 1) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), x.size(2), group, x.size(3)}).flatten(2, 3);
}

OutputOptions OutputOptions::Read(MixerOptions& options) {
  return {.gate = options.Bool("use_output_gate", true),
          .norm_affine = options.Bool("norm_affine", true)};
}

GatedOutput::GatedOutput(const MixerContext& context, const HeadSizes& sizes,
                         const OutputOptions& options)
    : norm_eps_(context.norm_eps) {
  if (options.gate)
    gate_ = DeclareMatrix(context, "g_proj.weight", sizes.value_dim(), context.model_dim);
  if (options.norm_affine)
    norm_ = DeclareNorm(context, options.gate ? "g_norm_swish_gate.weight" : "g_norm.weight",
                        sizes.head_dim_v);
  out_ = DeclareMatrix(context, "o_proj.weight", context.model_dim, sizes.value_dim());
}

at::Tensor GatedOutput::operator()(const at::Tensor& o, const at::Tensor& gate) const {
  const at::Tensor weight =
      norm_.declared() ? *norm_
                       : at::ones({o.size(-1)}, o.options().dtype(kernels::ComputeType(o)));
  const at::Tensor y = gate.defined()
                           ? kernels::GatedRmsNorm(o, gate.view(o.sizes()), weight, norm_eps_)
                           : kernels::RmsNorm(o, weight, norm_eps_);
  return kernels::Linear(y.flatten(-2), *out_);
}

}  // namespace halflife::model
