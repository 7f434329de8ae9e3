// Tensors as the kernels of decay attention read them, and the choice between the CPU's and CUDA's.
// Of the binding's own files.
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

namespace halflife::ops::binding {

// Error (exit 2) for a dtype that no kernel takes.
DType ToDType(const at::Tensor& x);
// Of [B, T, heads, width], and of one token, [B, heads, width].
kernels::TensorView ViewOf(const at::Tensor& x);
kernels::TensorView TokenView(const at::Tensor& x);
// Rows() of a log_decay: a constant one has no gaps between its heads either.
at::Tensor DecayRows(const at::Tensor& x, bool constant);
// Hd, 1 without a decay, and H: the most heads of q, k, v and the decay.
int64_t NumDecayHeads(const at::Tensor& log_decay);
int64_t NumHeads(const DecayAttentionInputs& in);
// x with Hd heads along `dim` for each of H heads, which reads index h * Hd / H.
at::Tensor OfHeads(const at::Tensor& x, int64_t num_heads, int64_t dim = 0);
// The kernels count rows, tokens, heads and channels in 32 bits (and form offsets in 64).
void CheckCounts(std::initializer_list<at::Tensor> tensors);
// The state has no field that the config gives no meaning to. `what` names it in the message.
void CheckStateFields(const char* what, const DecayState& state,
                      const DecayAttentionConfig& config);
// What of it is there lies beside q in these sizes, [sequences, H, K, V].
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

}  // namespace halflife::ops::binding
