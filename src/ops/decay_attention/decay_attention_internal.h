// Declarations that the files of decay attention share. Internal to this folder.
//
// Three forms of a call are prepared before the kernels run. Each takes and returns the public
// structs and has a file of its own: rows that are split across ranks
// (decay_attention_segments.cc), decays above 1 (decay_attention_growth.cc), and a denominator with
// operands of its own (decay_attention_normaliser.cc). Everything else is decay_attention.cc and,
// for one token, decay_attention_step.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "core/error.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"
#ifdef HALFLIFE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace halflife::ops {

// ---- rows that are split across ranks ----

// Decay attention over rows that are split across ranks: the segments exchange their states, with
// log scales if growth is allowed.
//
// Requires inputs.segment. Returns only `out`, because only the last rank has the final state.
DecayAttentionOutput OverSegments(const DecayAttentionInputs& inputs,
                                  const DecayAttentionConfig& config);

// ---- decays above 1 ----

struct ScaledInputs {
  // log_decay - mu and key_scale exp(-l), without a log_scale; differentiable in the original
  // inputs. With log_key_scale, the decay is per token.
  DecayAttentionInputs inputs;
  // exp(M - l) [B, T, H] in the dtype of key_scale, where M is log_key_scale
  at::Tensor key_factor;
  at::Tensor final_log_scale;  // [sequences, H] fp64
};
// Expects checked shapes of `inputs`. Error (exit 2) if the decay is per token or if there is no
// normaliser.
ScaledInputs ScaleGrowth(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config);

// The same for one token: advances log_scale [B, H] by one token in place, and returns inputs with
// scaled log_decay and key_scale.
DecayAttentionStepInputs ScaleGrowthOfStep(const DecayAttentionStepInputs& inputs,
                                           const DecayAttentionConfig& config, DecayState& state);

// ---- a denominator with operands of its own ----

// The normaliser with separate operands norm_q and norm_k, in two passes: one over v, and one over
// a column of ones, which yields the denominator. Rotary positions need it: the denominator uses
// unrotated q and k and therefore stays positive (Su et al., 2021, eq. 19).
//
// `inputs` must be those that ScaleGrowth returns if the decay may grow (allow_growth).
DecayAttentionOutput NormaliseSeparately(const DecayAttentionInputs& inputs,
                                         const DecayAttentionConfig& config);
at::Tensor NormaliseStepSeparately(const DecayAttentionStepInputs& inputs,
                                   const DecayAttentionConfig& config, DecayState& state);

// ---- tensors in the form that the kernels read, checks of shapes, and dispatch ----

namespace binding {

// Converts the dtype. Throws Error (exit 2) for a dtype that no kernel supports.
DType ToDType(const at::Tensor& x);
// Return views of a tensor [B, T, heads, width], and of a single token's tensor [B, heads, width].
kernels::TensorView ViewOf(const at::Tensor& x);
kernels::TensorView TokenView(const at::Tensor& x);
// Returns Rows() of a log_decay. A constant log_decay is also made contiguous across heads.
at::Tensor DecayRows(const at::Tensor& x, bool constant);
// Return Hd, which is 1 without a decay; and H, the largest head count of q, k, v and the decay.
int64_t NumDecayHeads(const at::Tensor& log_decay);
int64_t NumHeads(const DecayAttentionInputs& in);
// Repeats x along `dim` from Hd heads to num_heads: output head h reads head h * Hd / num_heads.
at::Tensor OfHeads(const at::Tensor& x, int64_t num_heads, int64_t dim = 0);
// Fails if a size does not fit into 32 bits: the kernels count rows, tokens, heads and channels in
// 32 bits and form offsets in 64.
void CheckCounts(std::initializer_list<at::Tensor> tensors);
// Fails if the state has a field that this config does not use. `what` names the state in the
// message.
void CheckStateFields(const char* what, const DecayState& state,
                      const DecayAttentionConfig& config);
// Checks that every defined field of the state is on q's device and has the shape that follows from
// `sizes`, [sequences, H, K, V].
void CheckStateShapes(const char* what, const DecayState& state, const at::Tensor& q,
                      at::IntArrayRef sizes);

[[noreturn]] void FailWithoutCuda();
#ifdef HALFLIFE_WITH_CUDA
#define HL_DISPATCH(is_cuda, function, ...)                                                   \
  (NoteKernel(), (is_cuda)                                                                    \
                     ? kernels::cuda::function(__VA_ARGS__, at::cuda::getCurrentCUDAStream()) \
                     : kernels::cpu::function(__VA_ARGS__))
#else
#define HL_DISPATCH(is_cuda, function, ...) \
  (NoteKernel(), (is_cuda) ? FailWithoutCuda() : kernels::cpu::function(__VA_ARGS__))
#endif

}  // namespace binding
}  // namespace halflife::ops
