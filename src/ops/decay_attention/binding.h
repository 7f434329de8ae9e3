// Views of tensors in the form that the kernels of decay attention read, checks of shapes, and the
// dispatch to the CPU or CUDA kernels. Internal to this folder.
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

// Error (exit 2) for a dtype that no kernel supports.
DType ToDType(const at::Tensor& x);
// Views of a tensor [B, T, heads, width], and of a single token's tensor [B, heads, width].
kernels::TensorView ViewOf(const at::Tensor& x);
kernels::TensorView TokenView(const at::Tensor& x);
// Rows() for a log_decay. A constant log_decay is also made contiguous across heads.
at::Tensor DecayRows(const at::Tensor& x, bool constant);
// Hd, which is 1 without a decay; and H, the largest head count of q, k, v and the decay.
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

}  // namespace halflife::ops::binding
