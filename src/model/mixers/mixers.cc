#include "model/mixers/mixers.h"

#include "kernels/rms_norm/rms_norm.h"

namespace halflife::model {

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

at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim) {
  return x.unflatten(-1, {-1, head_dim});
}

at::Tensor RepeatHeads(const at::Tensor& x, int64_t num_heads) {
  const int64_t group = num_heads / x.size(2);
  if (group == 1) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), x.size(2), group, x.size(3)}).flatten(2, 3);
}

at::Tensor NormAndGate(const at::Tensor& o, const at::Tensor& gate, const at::Tensor& norm_weight,
                       double eps) {
  const at::Tensor y = gate.defined()
                           ? kernels::GatedRmsNorm(o, gate.view(o.sizes()), norm_weight, eps)
                           : kernels::RmsNorm(o, norm_weight, eps);
  return y.flatten(-2);
}

}  // namespace halflife::model
