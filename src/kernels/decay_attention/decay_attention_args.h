// The contract of decay attention between its callers, its CPU kernels and its CUDA kernels: plain
// pointers and strides.
//
//   S_t = diag(exp(log_decay_t)) S_{t-1} + (c_t k_t)^T v_t,   out_t = norm(scale q_t S_t)
//
// Decay first, then add, then read. S is [K, V] per head. A NaN in q stays in its token's output;
// one in k, key_scale, v or log_decay is heard by its own and later tokens of its document and
// head, and by no other document, head or row, in gradients as little as in outputs (a constant
// decay's gradient, which sums over them, aside). On tensor cores earlier tokens of its tile of 16,
// counted from the chunk's first, hear one in v as well; by Hopper's warpgroups all of its chunk
// do, in gradients of one in any operand. Nothing here owns memory; the callee
// allocates nothing that outlives the call and reads no host-side value from device memory.
//
//   DecayAttentionArgs args = {.batch = B, .seq_len = T, ...};
//   const DecayAttentionPlan plan = MakePlan(args, DeviceLimits{});
//   std::vector<std::byte> workspace(ForwardWorkspaceBytes(args, plan));
//   args.workspace = workspace.data();
//   cpu::Forward(args, plan);
//
// C++17, no LibTorch, no fmt: CUDA sources include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/host_device.h"
#include "kernels/common/tensor_view.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int kMaxHeadDimK = 256, kMaxHeadDimV = 512;

enum class DecayKind : uint8_t {
  kNone,            // log_decay absent: plain linear attention
  kPerHead,         // [H]           RetNet, Lightning
  kPerHeadChannel,  // [H, K]        D2D; may grow (> 0) while every sum over a chunk stays below 60
  kPerToken,        // [B, T, H]     Mamba-2, simple GLA
  kPerTokenChannel,  // [B, T, H, K]  GLA, HGRN2
};
// One factor a token (it scales a finished tile of scores), or one a channel (it must be folded
// into the operands).
HL_EVERYWHERE constexpr bool IsPerChannel(DecayKind kind) {
  return kind == DecayKind::kPerHeadChannel || kind == DecayKind::kPerTokenChannel;
}
HL_EVERYWHERE constexpr bool IsPerToken(DecayKind kind) {
  return kind == DecayKind::kPerToken || kind == DecayKind::kPerTokenChannel;
}

enum class NormKind : uint8_t {
  kNone,
  // out_t = n / (d + eps), d = scale q_t z_t, z_t the state of a column of ones: z_t = a_t z_{t-1}
  // + c_t k_t
  kSumOfKeys,
};

struct DecayAttentionArgs {
  int batch = 0, seq_len = 0;  // B, T
  int num_heads = 0;           // H: heads of the output; every count below divides it
  int num_q_heads = 0, num_k_heads = 0, num_v_heads = 0, num_decay_heads = 0;
  int head_dim_k = 0, head_dim_v = 0;  // K, V
  DecayKind decay_kind = DecayKind::kNone;
  NormKind norm_kind = NormKind::kNone;
  double scale = 1, norm_eps = 1e-30;

  // [B, T, Hq, K] fp32 or bf16 (fp64 on the CPU, for gradient checks); k and v alike
  TensorView q;
  TensorView k;    // [B, T, Hk, K]
  TensorView v;    // [B, T, Hv, V]
  TensorView out;  // [B, T, H, V]
  // natural log, fp32 (fp64 beside fp64); shape of its kind over Hd heads, a constant one's without
  // gaps between heads on CUDA; -inf allowed per token
  TensorView log_decay;
  TensorView key_scale;  // c_t [B, T, H] fp32, or absent: 1

  // Sequences carry a state in and out: the rows of a batch, or with packed sequences (batch 1)
  // each of them. Sequence n owns chunks [sequence_begin[n], sequence_begin[n + 1]), in order; none
  // at all: its final state is its initial state.
  int num_sequences = 0, num_chunks = 0;
  // [num_chunks], in the device's memory; built by MakeChunkTable
  const ChunkEntry* chunks = nullptr;
  const int32_t* sequence_begin = nullptr;  // [num_sequences + 1]

  // All fp32 (fp64 beside fp64), contiguous; null: zero, or not wanted.
  const void* initial_state = nullptr;  // [num_sequences, H, K, V]
  void* final_state = nullptr;          // [num_sequences, H, K, V]
  const void* initial_norm = nullptr;   // [num_sequences, H, K]   z, with kSumOfKeys
  void* final_norm = nullptr;           // [num_sequences, H, K]

  // Written by a forward that will be differentiated, read by its backward.
  void* norm_denom = nullptr;  // [B, T, H] fp32: d + eps, with kSumOfKeys
  // CheckpointBytes(): states before every plan.checkpoint_every-th chunk; null: inference
  void* checkpoints = nullptr;

  // ForwardWorkspaceBytes() or what else the call is; contents undefined before and after
  void* workspace = nullptr;
};

// Gradients have the shapes of what they are gradients of, with H heads summed over those that
// share.
struct DecayAttentionGradArgs {
  DecayAttentionArgs forward;  // as the forward had it; `out` is read only with kSumOfKeys
  TensorView dout;             // [B, T, H, V]
  TensorView dq, dk, dv;       // all written
  // [Hd], [Hd, K], [B, T, Hd] or [B, T, Hd, K] fp32 (fp64); absent: not wanted
  TensorView dlog_decay;
  TensorView dkey_scale;               // [B, T, H] fp32; absent: not wanted
  const void* dfinal_state = nullptr;  // [num_sequences, H, K, V]; null: zero
  void* dinitial_state = nullptr;      // null: not wanted
  const void* dfinal_norm = nullptr;   // [num_sequences, H, K]
  void* dinitial_norm = nullptr;
};

// What the device can do, as far as the choice of a schedule depends on it.
struct DeviceLimits {
  bool is_cuda = false;
  // CUDA: multiprocessors; the CPU's schedule ignores its threads, so that they cannot change a bit
  // of the result
  int num_sms = 1;
  int64_t shared_memory_bytes = 0;  // CUDA: most a block may ask for
  bool warpgroups = false;  // CUDA: has Hopper's products of warpgroups, and they are wanted
};

// What a caller has decided of a plan; 0: MakePlan decides.
struct PlanRequest {
  int chunk_size = 0;    // that args.chunks was cut with
  int num_segments = 0;  // of DecayAttentionPlan, in both directions
};

// CUDA: rows and columns of a state [K, V] that a block of a scan owns; a wider head is cut into
// slices, a block each. None: no scan on tensor cores takes the problem.
struct DecayBlock {
  int k = 0, v = 0;
};

struct DecayAttentionPlan {
  int chunk_size = 0;        // of args.chunks, at most
  int checkpoint_every = 4;  // chunks between saved states
  // Pieces of each sequence that are scanned in parallel; 1: a fused single pass. CUDA's reverse
  // scans, whose blocks are others, have pieces of their own.
  int num_segments = 1, backward_segments = 1;
  // CUDA: groups of the batch's rows that run one after the other in the same workspace (turns.h).
  int forward_turns = 1, backward_turns = 1;
  // CPU: chunks, whole groups between saved states, that heads scanned side by side advance by in
  // turn; which heads, and whether any, is no matter of bits and follows the threads.
  int stretch_chunks = 1 << 30;
  bool is_cuda = false;
  DecayBlock forward, backward;
  // CUDA: products are those of warpgroups, and backward all chunks go side by side.
  bool forward_warpgroups = false, backward_warpgroups = false;
};
// A pure function of shape, device and request; throws Error (exit 2) naming every problem of the
// shape.
DecayAttentionPlan MakePlan(const DecayAttentionArgs& args, const DeviceLimits& limits,
                            const PlanRequest& request = {});
size_t ForwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
size_t BackwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// Of Summarise and of BackwardSummarise, which have no outputs to sum.
size_t SummaryWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
size_t ReverseSummaryWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
size_t CheckpointBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

// One token a sequence; the state is updated in place.
struct DecayAttentionStepArgs {
  int batch = 0, num_heads = 0;
  int num_q_heads = 0, num_k_heads = 0, num_v_heads = 0, num_decay_heads = 0;
  int head_dim_k = 0, head_dim_v = 0;
  DecayKind decay_kind = DecayKind::kNone;
  NormKind norm_kind = NormKind::kNone;
  double scale = 1, norm_eps = 1e-30;
  TensorView q, k, v, out;  // [B, H*, K|V]: stride_t unused
  TensorView log_decay;     // [Hd], [Hd, K], [B, Hd] or [B, Hd, K]
  TensorView key_scale;     // [B, H] or absent
  void* state = nullptr;    // [slots, H, K, V] fp32
  void* norm = nullptr;     // [slots, H, K] with kSumOfKeys
  // [B]: which state row b owns; null: b. Negative: no state, out is zero.
  const int32_t* slots = nullptr;
};

// The state contract of a segment of a sequence (one rank's slice): S_out = exp(log_transition)
// S_in + state.
struct DecaySegmentArgs {
  // Summarise reads k and v; BackwardSummarise q and, with kSumOfKeys, the out and norm_denom of
  // the segment's own forward.
  DecayAttentionArgs forward;
  TensorView dout;  // read by BackwardSummarise
  // [num_sequences, H, K or 1] fp32; -inf where a document starts inside; K with per-channel decay.
  // Null: not wanted.
  void* log_transition = nullptr;
  // [num_sequences, H, K, V]: the final state from a zero one; for BackwardSummarise dL/d(initial
  // state) from a zero dL/d(final state)
  void* state = nullptr;
  void* norm = nullptr;  // [num_sequences, H, K]: the same of z, with kSumOfKeys
};

namespace cpu {
void Forward(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
void Backward(const DecayAttentionGradArgs& args, const DecayAttentionPlan& plan);
void Step(const DecayAttentionStepArgs& args);
void Summarise(const DecaySegmentArgs& args, const DecayAttentionPlan& plan);
void BackwardSummarise(const DecaySegmentArgs& args, const DecayAttentionPlan& plan);
}  // namespace cpu

namespace cuda {
void Forward(const DecayAttentionArgs& args, const DecayAttentionPlan& plan, cudaStream_t stream);
void Backward(const DecayAttentionGradArgs& args, const DecayAttentionPlan& plan,
              cudaStream_t stream);
void Step(const DecayAttentionStepArgs& args, cudaStream_t stream);
void Summarise(const DecaySegmentArgs& args, const DecayAttentionPlan& plan, cudaStream_t stream);
void BackwardSummarise(const DecaySegmentArgs& args, const DecayAttentionPlan& plan,
                       cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
