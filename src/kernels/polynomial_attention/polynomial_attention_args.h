// Arguments of polynomial attention, shared by its LibTorch side, CPU kernels and CUDA kernels:
// plain pointers and strides. Causal attention whose similarity is a polynomial of degree 2:
//
//   kappa(s) = a0 + a1 s + a2 s^2,   s_ij = scale q_i . k_j
//   n_i = sum over j <= i of kappa(s_ij) v_j,   z_i = sum over j <= i of kappa(s_ij)
//   out_i = n_i / (z_i + norm_eps), divided in fp32, or n_i
//
// (1, 1, 1/2) is Based (Arora et al., 2024), (0, 0, 1) ReBased (Aksenov et al., 2024). As kappa is
// a product of features (features.h), a state of fixed size represents all earlier tokens: S [F, V]
// = sum of psi(k_j) v_j and u [F] = sum of psi(k_j). Over a segment, S_out = S_in + its own sum, or
// only the sum since the last document start if there is one.
//
// NaN propagation: a NaN in q affects only that token's output. A NaN in k or v affects the same
// and later tokens of the same document and head. In gradients it can also affect earlier tokens of
// its chunk. Exception: in CUDA's quadratic form, it spreads to all tokens of the tiles of 64 that
// are paired with its tile. The kernels own no memory, allocate nothing that outlives the call, and
// read no value from device memory on the host.
//
//   PolynomialAttentionArgs args = {.batch = B, .seq_len = T, ...};
//   const PolynomialAttentionPlan plan = MakePlan(args, {.chunk_size = 32});
//   cpu::Forward(args, plan);
//
// C++17 without LibTorch and fmt, because CUDA sources include it.
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

  // [B, T, H, d] fp32 or bf16 (fp64 on the CPU, for gradient checks); k and v have the same dtype.
  TensorView q;
  TensorView k;    // [B, T, H, d]
  TensorView v;    // [B, T, H, V]
  TensorView out;  // [B, T, H, V]

  // As in decay attention, sequence n has chunks [sequence_begin[n], sequence_begin[n + 1]), in
  // order. If there are none, its final state is its initial state.
  int num_sequences = 0, num_chunks = 0;
  // [num_chunks], on the device; made by MakeChunkTable().
  const ChunkEntry* chunks = nullptr;
  const int32_t* sequence_begin = nullptr;  // [num_sequences + 1]

  // All are fp32 (fp64 for fp64 operands) and contiguous; null: zero, or not computed.
  const void* initial_state = nullptr;  // [num_sequences, H, F, V]
  void* final_state = nullptr;          // [num_sequences, H, F, V]
  const void* initial_norm = nullptr;   // [num_sequences, H, F], if normalised
  void* final_norm = nullptr;           // [num_sequences, H, F]
  bool has_state() const {
    return initial_state != nullptr || final_state != nullptr || initial_norm != nullptr ||
           final_norm != nullptr;
  }

  // Written by a forward that will be differentiated and read by its backward, if normalised.
  void* norm_denom = nullptr;  // [B, T, H] fp32: z + norm_eps

  // On CUDA: ForwardWorkspaceBytes() or WorkspaceBytes(), aligned to 16. Its contents are undefined
  // before and after.
  void* workspace = nullptr;
};

struct PolynomialAttentionGradArgs {
  // The arguments of the forward; `out` is only read if normalised.
  PolynomialAttentionArgs forward;
  TensorView dout;                     // [B, T, H, V]
  TensorView dq, dk, dv;               // all written
  const void* dfinal_state = nullptr;  // [num_sequences, H, F, V]; null: zero
  void* dinitial_state = nullptr;      // null: not computed
  const void* dfinal_norm = nullptr;   // [num_sequences, H, F]
  void* dinitial_norm = nullptr;
};

// kQuadratic pairs a token with every earlier token of its document, in O(T^2); on CUDA only for
// bf16. kChunked pairs it with those of its chunk and uses the state for the others, in O(T).
enum class PolynomialForm : uint8_t { kByShape, kQuadratic, kChunked };

// The decisions about a plan that the caller has made.
struct PolynomialPlanRequest {
  int chunk_size = 0;  // chunk size of args.chunks; 0: the device's default
  PolynomialForm form = PolynomialForm::kByShape;
  bool is_cuda = false;
};

struct PolynomialAttentionPlan {
  int chunk_size = 0;      // maximum size of the chunks in args.chunks
  bool quadratic = false;  // true: neither reads nor writes a state
  // CPU only: chunks that one head advances before the next head of its group does. Does not affect
  // results.
  int block_chunks = 1 << 30;
};
// Chooses a plan, as a pure function of shape and request. Throws an error (exit 2) that lists all
// problems of the shape.
PolynomialAttentionPlan MakePlan(const PolynomialAttentionArgs& args,
                                 const PolynomialPlanRequest& request = {});

// One token per sequence. The state is updated in place.
struct PolynomialAttentionStepArgs {
  int batch = 0, num_heads = 0, head_dim = 0, head_dim_v = 0;
  double scale = 1;
  PolynomialWeights weights;
  bool normalise = true;
  double norm_eps = 1e-12;
  TensorView q, k, v, out;  // [B, H, d|V]: stride_t unused
  void* state = nullptr;    // [B, H, F, V] fp32
  void* norm = nullptr;     // [B, H, F], if normalised
};

namespace cpu {
void Forward(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan);
void Backward(const PolynomialAttentionGradArgs& args, const PolynomialAttentionPlan& plan);
// Compute only the final state, or only the gradient of the initial state, with a plan that is not
// quadratic. The other arguments are as for the whole operation, but out, dq, dk and dv are not
// written.
void Summarise(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan);
void BackwardSummarise(const PolynomialAttentionGradArgs& args,
                       const PolynomialAttentionPlan& plan);
void Step(const PolynomialAttentionStepArgs& args);
}  // namespace cpu

namespace cuda {
size_t ForwardWorkspaceBytes(const PolynomialAttentionArgs& args,
                             const PolynomialAttentionPlan& plan);
// Returns the workspace size of a backward. A step needs no workspace.
size_t WorkspaceBytes(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan);
void Forward(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan,
             cudaStream_t stream);
void Backward(const PolynomialAttentionGradArgs& args, const PolynomialAttentionPlan& plan,
              cudaStream_t stream);
void Step(const PolynomialAttentionStepArgs& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
