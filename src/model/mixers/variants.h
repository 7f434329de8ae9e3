// Inner header of the mixers: the functions that give their variants, and what several families
// share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/mixer.h"
#include "model/norms/norm.h"

namespace halflife::model {

struct MixerVariant : Variant<Mixer, PartContext> {
  std::vector<std::vector<Assignment>> test_forms;
};

// `test_forms`: options of small models of dim 16.
template <typename Options, typename Class>
MixerVariant MixerVariantOf(const char* name, std::vector<std::vector<Assignment>> test_forms) {
  return {VariantOf<Options, Class, Mixer, PartContext>(name), std::move(test_forms)};
}

#define HL_MIXER(Make) MixerVariant Make();
#include "model/mixers/mixers.inc"
#undef HL_MIXER

// [..., H d] -> [..., H, d].
at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim);
// [B, T, Hk, d] -> [B, T, H, d]: query head h reads head h / (H / Hk).
at::Tensor RepeatHeads(const at::Tensor& x, int64_t num_heads);

// Writes a token [B, 1, ...] to place `place` of a state that grows, [B, capacity, ...]; where it
// is full, it is replaced by one of twice the capacity.
void AppendToken(const at::Tensor& token, int64_t place, at::Tensor& cache);

// Of last matrices that public layers call otherwise, or start otherwise than other matrices.
struct OutputForm {
  std::string name = "o_proj";
  std::optional<Init> init = {};  // what the block's output_init_scale scales
};

// The last matrix of a mixer, o_proj: y W^T + b, after the sub-LN norm where the block wants one.
class OutputProjection {
 public:
  OutputProjection() = default;
  OutputProjection(const PartContext& context, int64_t width, bool bias,
                   const OutputForm& form = {});
  at::Tensor operator()(const at::Tensor& y) const;  // [..., width] -> [..., D]

 private:
  std::unique_ptr<const Norm> inner_norm_;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
