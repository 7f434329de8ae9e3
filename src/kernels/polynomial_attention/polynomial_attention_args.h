// The contract of polynomial attention between its callers, its CPU kernels and its CUDA kernels:
// plain pointers and strides. Causal attention whose similarity is a polynomial of degree 2:
//
//   kappa(s) = a0 + a1 s + a2 s^2,   s_ij = scale q_i . k_j
//   n_i = sum over j <= i of kappa(s_ij) v_j,   z_i = sum over j <= i of kappa(s_ij)
//   out_i = n_i / (z_i + norm_eps), divided in fp32, or n_i
//
// (1, 1, 1/2) is Based (Arora et al., 2024), (0, 0, 1) ReBased (Aksenov et al., 2024). As kappa is
// a product of features (features.h), a state of fixed size stands for all earlier tokens: S [F, V]
// = sum of psi(k_j) v_j and u [F] = sum of psi(k_j); S_out = S_in + own, and 0 + own where a
// document starts.
//
// A NaN in q stays in its token's output; one in k or v is heard by its own and later tokens of its
// document and head. In gradients earlier tokens of its chunk hear it too; no other document, head
// or row ever does, but by CUDA's quadratic form, where a tile of 64 tokens hears what is in the
// tiles that it meets. Nothing here owns memory; the callee allocates nothing that outlives the
// call and reads no host-side value from device memory.
//
//   PolynomialAttentionArgs args = {.batch = B, .seq_len = T, ...};
//   const PolynomialAttentionPlan plan = MakePlan(args, {.chunk_size = 32});
//   cpu::Forward(args, plan);
//
// C++17, no LibTorch, no fmt: CUDA sources include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/tensor_view.h"
#include "kernels/polynomial_attention/features.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

struct PolynomialAttentionArgs {
  int batch = 0, seq_len = 0, num_heads = 0;  // B, T, H
  int head_dim = 0, head_dim_v = 0;           // d of q and k, V
  double scale = 1;
  PolynomialWeights weights;
  bool normalise = true;
  double norm_eps = 1e-12;

  // [B, T, H, d] fp32 or bf16 (fp64 on the CPU, for gradient checks); k and v alike
  TensorView q;
  TensorView k;    // [B, T, H, d]
  TensorView v;    // [B, T, H, V]
  TensorView out;  // [B, T, H, V]

  // As in decay attention: sequence n owns chunks [sequence_begin[n], sequence_begin[n + 1]), in
  // order; none at all: its final state is its initial state.
  int num_sequences = 0, num_chunks = 0;
  // [num_chunks], in the device's memory; built by MakeChunkTable
  const ChunkEntry* chunks = nullptr;
  const int32_t* sequence_begin = nullptr;  // [num_sequences + 1]

  // All fp32 (fp64 beside fp64), contiguous; null: zero, or not wanted.
  const void* initial_state = nullptr;  // [num_sequences, H, F, V]
  void* final_state = nullptr;          // [num_sequences, H, F, V]
  const void* initial_norm = nullptr;   // [num_sequences, H, F], where normalised
  void* final_norm = nullptr;           // [num_sequences, H, F]
  bool has_state() const {
    return initial_state != nullptr || final_state != nullptr || initial_norm != nullptr ||
           final_norm != nullptr;
  }

  // Written by a forward that will be differentiated, read by its backward, where normalised.
  void* norm_denom = nullptr;  // [B, T, H] fp32: z + norm_eps

  // On CUDA: ForwardWorkspaceBytes() or WorkspaceBytes(), aligned to 16; contents undefined before
  // and after.
  void* workspace = nullptr;
};

struct PolynomialAttentionGradArgs {
  PolynomialAttentionArgs forward;     // as the forward had it; `out` is read only where normalised
  TensorView dout;                     // [B, T, H, V]
  TensorView dq, dk, dv;               // all written
  const void* dfinal_state = nullptr;  // [num_sequences, H, F, V]; null: zero
  void* dinitial_state = nullptr;      // null: not wanted
  const void* dfinal_norm = nullptr;   // [num_sequences, H, F]
  void* dinitial_norm = nullptr;
};

// Tokens meet every earlier token of their document, in O(T^2), which CUDA has of bf16 alone; or
// those of their chunk, and the state for the others, in O(T).
enum class PolynomialForm : uint8_t { kByShape, kQuadratic, kChunked };

// What a caller has decided of a plan.
struct PolynomialPlanRequest {
  int chunk_size = 0;  // that args.chunks was cut with; 0: the device's own
  PolynomialForm form = PolynomialForm::kByShape;
  bool is_cuda = false;
};

struct PolynomialAttentionPlan {
  int chunk_size = 0;      // of args.chunks, at most
  bool quadratic = false;  // neither reads a state nor leaves one
  // CPU: chunks that heads scanned side by side advance by in turn. No matter of bits.
  int stretch_chunks = 1 << 30;
};
// A pure function of shape and request; throws Error (exit 2) naming every problem of the shape.
PolynomialAttentionPlan MakePlan(const PolynomialAttentionArgs& args,
                                 const PolynomialPlanRequest& request = {});

// One token a sequence; the state is updated in place.
struct PolynomialAttentionStepArgs {
  int batch = 0, num_heads = 0, head_dim = 0, head_dim_v = 0;
  double scale = 1;
  PolynomialWeights weights;
  bool normalise = true;
  double norm_eps = 1e-12;
  TensorView q, k, v, out;  // [B, H, d|V]: stride_t unused
  void* state = nullptr;    // [B, H, F, V] fp32
  void* norm = nullptr;     // [B, H, F], where normalised
};

namespace cpu {
void Forward(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan);
void Backward(const PolynomialAttentionGradArgs& args, const PolynomialAttentionPlan& plan);
// Only the states of these, by a plan that is not quadratic: the final one; the initial one's
// gradient. Nothing is written to out, dq, dk and dv, which are as for the whole.
void Summarise(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan);
void BackwardSummarise(const PolynomialAttentionGradArgs& args,
                       const PolynomialAttentionPlan& plan);
void Step(const PolynomialAttentionStepArgs& args);
}  // namespace cpu

namespace cuda {
size_t ForwardWorkspaceBytes(const PolynomialAttentionArgs& args,
                             const PolynomialAttentionPlan& plan);
// Of a backward; a step needs none.
size_t WorkspaceBytes(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan);
void Forward(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan,
             cudaStream_t stream);
void Backward(const PolynomialAttentionGradArgs& args, const PolynomialAttentionPlan& plan,
              cudaStream_t stream);
void Step(const PolynomialAttentionStepArgs& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
