// The contract of the delta rule between its callers and its kernels: plain pointers and strides.
//
//   S~  = exp(log_decay_t) S_{t-1}             the decay scales the rows of S
//   u_t = beta_t (v_t - k_t S~)
//   S_t = S~ + k_t^T u_t,   out_t = scale q_t S_t
//
// S is [K, V] per value head. Without log_decay this is DeltaNet (Yang et al., 2024, Parallelizing
// Linear Transformers with the Delta Rule). With one decay per token it is Gated DeltaNet (Yang et
// al., 2025). With one decay per token and key channel it is KDA (Kimi Linear, 2025).
//
// The kernels do not normalise k: the caller passes keys whose norm is at most 1. log_decay must be
// at most 0 and may be -inf, which resets the state. beta may be 0.
//
// NaN propagation: a NaN in q affects only that token's output. A NaN in another operand affects
// outputs of the same and later tokens of the same document and value head. In gradients it can
// also affect earlier tokens. No other document or value head is affected, except that value heads
// share the gradients of their q and k. Exception: on a GPU a NaN in k, v, log_decay or beta also
// affects up to 15 earlier tokens of its chunk, and all of them with Hopper's warpgroup
// instructions.
//
// Nothing here owns memory, and the kernels allocate nothing that outlives the call.
//
// C++17, without LibTorch and fmt, so that CUDA sources can include this header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/tensor_view.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int kDeltaMaxHeadDimK = 256, kDeltaMaxHeadDimV = 512;
// The largest number of tokens of a chunk. On the CPU, chunks of 32 and 64 cost the same.
constexpr int kDeltaChunkSize = 64;

enum class DeltaDecay : uint8_t {
  kNone,             // no log_decay: DeltaNet
  kPerToken,         // [B, T, HV]: Gated DeltaNet
  kPerTokenChannel,  // [B, T, HV, K]: KDA
};

struct DeltaRuleArgs {
  int batch = 0, seq_len = 0;  // B, T
  int num_heads = 0;           // H: heads of q and k
  // HV: heads of v, out, log_decay, beta and the states. A multiple of H: value head h reads head
  // h H / HV of q and k.
  int num_value_heads = 0;
  int head_dim_k = 0, head_dim_v = 0;  // K, V
  DeltaDecay decay = DeltaDecay::kNone;
  double scale = 1;
  // CUDA: the device has Hopper's warpgroup instructions (wgmma), and they are enabled.
  bool warpgroups = false;
  int64_t shared_memory_bytes = 227 << 10;  // CUDA: the maximum of a block on the device

  // fp32, bf16 or (on the CPU, for gradient checks) fp64; the same type for all four
  TensorView q, k;    // [B, T, H, K]
  TensorView v, out;  // [B, T, HV, V]
  // Natural log, fp32 (fp64 with fp64 operands), in the shape of `decay`; absent with kNone.
  TensorView log_decay;
  TensorView beta;  // [B, T, HV] fp32 (fp64)

  // A sequence carries a state in and out. The sequences are the rows of the batch or, if the batch
  // is one row of packed sequences, each of these. Sequence n owns chunks [sequence_begin[n],
  // sequence_begin[n + 1]), in order. If it has no chunks, its final state is its initial state.
  int num_sequences = 0, num_chunks = 0;
  // [num_chunks], of at most kDeltaChunkSize tokens; built by MakeChunkTable. The entries from
  // sequence_begin[num_sequences] on are unused.
  const ChunkEntry* chunks = nullptr;
  const int32_t* sequence_begin = nullptr;  // [num_sequences + 1]

  // [num_sequences, HV, K, V] fp32 (fp64), contiguous. Null input: zero. Null output: not computed.
  const void* initial_state = nullptr;
  void* final_state = nullptr;

  // DeltaRuleCheckpointBytes() bytes, written by a forward that will be differentiated and read by
  // its backward: the states before every few chunks. Null: inference.
  void* checkpoints = nullptr;
  // DeltaRuleWorkspaceBytes() bytes on the CPU, where only the backward uses it. On a GPU every
  // call uses it (see the functions below). Contents are undefined before and after.
  void* workspace = nullptr;
};

// A gradient has the shape of its operand. The gradients of q and k are summed over the value heads
// of a head, in the order of the value heads.
struct DeltaRuleGradArgs {
  DeltaRuleArgs forward;               // the forward's arguments; `out` is not read
  TensorView dout;                     // [B, T, HV, V], in the type of v
  TensorView dq, dk, dv;               // all are written, in the type of their operand
  TensorView dlog_decay, dbeta;        // fp32 (fp64); absent: not computed
  const void* dfinal_state = nullptr;  // [num_sequences, HV, K, V]; null: zero
  void* dinitial_state = nullptr;      // null: not computed
};

// One token per row. The state is updated in place.
struct DeltaRuleStepArgs {
  int batch = 0, num_heads = 0, num_value_heads = 0;  // B, H, HV
  int head_dim_k = 0, head_dim_v = 0;
  DeltaDecay decay = DeltaDecay::kNone;
  double scale = 1;
  TensorView q, k;        // [B, H, K]: stride_t is unused here and below
  TensorView v, out;      // [B, HV, V]
  TensorView log_decay;   // [B, HV] or [B, HV, K]
  TensorView beta;        // [B, HV]
  void* state = nullptr;  // [B, HV, K, V] fp32 (fp64)
};

// A segment of a sequence (one rank's part) as an affine map of its state, and its adjoint:
//
//   S_out = M S_in + N,   dL/dS_in = M^T dL/dS_out + Z
//
// Composition of segment 1, then 2: M = M2 M1, N = M2 N1 + N2, Z = M1^T Z2 + Z1. Each of M, N and Z
// is a result of the segment's own tokens. M is zero if a document starts in the segment. The norm
// of M is at most 1 if log_decay <= 0, |k| <= 1 and 0 <= beta <= 2, so products of M do not grow.
struct DeltaSegmentArgs {
  // DeltaRuleSummarise reads k, v, log_decay and beta. DeltaRuleBackwardSummarise reads q, k,
  // log_decay, beta and dout. The states, checkpoints and workspace are not accessed.
  DeltaRuleArgs forward;
  TensorView dout;             // [B, T, HV, V]
  void* transition = nullptr;  // M [num_sequences, HV, K, K]; null: not computed
  void* state = nullptr;       // N [num_sequences, HV, K, V]; null: not computed
  void* adjoint = nullptr;     // Z [num_sequences, HV, K, V], of DeltaRuleBackwardSummarise
};

// Throws Error (exit 2) that lists every problem of sizes and dtypes. The kernels check what
// depends on pointers.
void CheckDeltaRuleShape(const DeltaRuleArgs& args);
size_t DeltaRuleWorkspaceBytes(const DeltaRuleArgs& args);
size_t DeltaRuleCheckpointBytes(const DeltaRuleArgs& args);

namespace cpu {
void DeltaRuleForward(const DeltaRuleArgs& args);
void DeltaRuleBackward(const DeltaRuleGradArgs& grads);
void DeltaRuleStep(const DeltaRuleStepArgs& args);
// Computes M and N.
void DeltaRuleSummarise(const DeltaSegmentArgs& args);
// Computes Z.
void DeltaRuleBackwardSummarise(const DeltaSegmentArgs& args);
}  // namespace cpu

// Pointers are those of the device, `chunks` and `sequence_begin` too. bf16 or fp32.
namespace cuda {
// Returns true if the kernels support the sizes and dtypes, and args.shared_memory_bytes suffice.
// With 227 KiB: bf16 with K <= 256, fp32 with K <= 256 (K <= 128 with decays per channel).
bool SupportsDeltaRule(const DeltaRuleArgs& args);
// The same for a forward and its gradients. With 227 KiB: bf16 with K <= 256, fp32 with K <= 128.
bool SupportsDeltaRuleBackward(const DeltaRuleArgs& args);
// Returns the bytes of args.workspace, which must be aligned to 256 bytes.
size_t DeltaRuleForwardBytes(const DeltaRuleArgs& args);
size_t DeltaRuleBackwardBytes(const DeltaRuleArgs& args);
size_t DeltaRuleSummaryBytes(const DeltaRuleArgs& args);
size_t DeltaRuleAdjointBytes(const DeltaRuleArgs& args);  // of DeltaRuleBackwardSummarise
void DeltaRuleForward(const DeltaRuleArgs& args, cudaStream_t stream);
void DeltaRuleBackward(const DeltaRuleGradArgs& grads, cudaStream_t stream);
void DeltaRuleStep(const DeltaRuleStepArgs& args, cudaStream_t stream);
// Computes M and N.
void DeltaRuleSummarise(const DeltaSegmentArgs& args, cudaStream_t stream);
// Computes Z.
void DeltaRuleBackwardSummarise(const DeltaSegmentArgs& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
