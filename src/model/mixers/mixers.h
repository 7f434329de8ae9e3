// Inner header of the mixers: their makers, and the steps that several of them share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "model/mixer.h"

namespace halflife::model {

#define HL_MIXER(name, Make) \
  std::unique_ptr<Mixer> Make(const MixerConfig& config, const MixerContext& context);
#include "model/mixers/mixers.inc"
#undef HL_MIXER

// The widths of a linear mixer, from its options num_heads, num_kv_heads, expand_k and expand_v. Sizes that do not fit
// are collected in `options` (options.Check() throws them) and come back as 0.
struct HeadSizes {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim_k = 0, head_dim_v = 0;
  int64_t key_dim() const { return num_heads * head_dim_k; }
  int64_t value_dim() const { return num_heads * head_dim_v; }
};
struct HeadDefaults {
  int64_t num_heads;
  double expand_k, expand_v;
};
HeadSizes ReadHeadSizes(MixerOptions& options, int64_t model_dim, const HeadDefaults& defaults);

// Declares prefix + name: a matrix [out, in] with weight decay, or a vector in fp32 without.
Parameter DeclareMatrix(const MixerContext& context, const std::string& name, int64_t out,
                        int64_t in);
Parameter DeclareNorm(const MixerContext& context, const std::string& name, int64_t dim);
// prefix + name: zeros, added in the compute dtype, without weight decay.
Parameter DeclareBias(const MixerContext& context, const std::string& name, int64_t dim);

// [..., H d] -> [..., H, d].
at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim);
// [B, T, Hk, d] -> [B, T, H, d]: query head h reads head h / (H / Hk).
at::Tensor RepeatHeads(const at::Tensor& x, int64_t num_heads);

// The output of linear mixers: RMSNorm over each head's channels, times silu(gate) where the mixer has a gate, then
// o_proj. Options use_output_gate and norm_affine (a learned weight of the norm). Parameters g_proj.weight,
// g_norm_swish_gate.weight (without a gate: g_norm.weight), o_proj.weight.
struct OutputOptions {
  bool gate = true, norm_affine = true;
  static OutputOptions Read(MixerOptions& options);
};
class GatedOutput {
 public:
  GatedOutput() = default;
  GatedOutput(const MixerContext& context, const HeadSizes& sizes, const OutputOptions& options);
  // Undeclared without a gate. Its product with x is `gate` below: mixers compute it with their other projections.
  const Parameter& gate_proj() const { return gate_; }
  // o [..., H, V], gate [..., H V] or undefined -> [..., D].
  at::Tensor operator()(const at::Tensor& o, const at::Tensor& gate) const;

 private:
  double norm_eps_ = 0;
  Parameter gate_, norm_, out_;
};

}  // namespace halflife::model
