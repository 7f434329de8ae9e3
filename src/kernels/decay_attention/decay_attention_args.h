// The contract of decay attention between its callers, its CPU kernels and its CUDA kernels: plain
// pointers and strides.
//
//   S_t = diag(exp(log_decay_t)) S_{t-1} + (c_t k_t)^T v_t,   out_t = norm(scale q_t S_t)
//
// A step first decays the state, then adds to it, then reads it. S is [K, V] per head.
//
// NaN propagation: a NaN in q affects only that token's output. A NaN in k, key_scale, v or
// log_decay affects the same and later tokens of the same document and head. No other document,
// head or row is affected, in outputs and in gradients. Exceptions:
//   (1) The gradient of a constant decay sums over all tokens.
//   (2) The tensor-core path can also spread a NaN in v to earlier tokens of its 16-token tile,
//       counted from the chunk's first token.
//   (3) The WGMMA path can spread a NaN in v to its whole chunk and, in gradients, a NaN in any
//       operand.
//
// Nothing here owns memory. The callee allocates nothing that outlives the call and reads no
// host-side value from device memory.
//
//   DecayAttentionArgs args = {.batch = B, .seq_len = T, ...};
//   const DecayAttentionPlan plan = MakePlan(args, DeviceLimits{});
//   std::vector<std::byte> workspace(ForwardWorkspaceBytes(args, plan));
//   args.workspace = workspace.data();
//   cpu::Forward(args, plan);
//
// C++17, without LibTorch and fmt, because CUDA sources include this header.
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
  kNone,             // no log_decay: plain linear attention
  kPerHead,          // [H]           RetNet, Lightning
  kPerHeadChannel,   // [H, K]        D2D; may grow (> 0) if every sum over a chunk is below 60
  kPerToken,         // [B, T, H]     Mamba-2, simple GLA
  kPerTokenChannel,  // [B, T, H, K]  GLA, HGRN2
};
// Returns true if each key channel has its own decay factor. A factor per token scales a finished
// tile of scores; a factor per channel must be multiplied into the operands.
HL_EVERYWHERE constexpr bool IsPerChannel(DecayKind kind) {
  return kind == DecayKind::kPerHeadChannel || kind == DecayKind::kPerTokenChannel;
}
HL_EVERYWHERE constexpr bool IsPerToken(DecayKind kind) {
  return kind == DecayKind::kPerToken || kind == DecayKind::kPerTokenChannel;
}

enum class NormKind : uint8_t {
  kNone,
  // out_t = n / (d + eps), where n = scale q_t S_t and d = scale q_t z_t. The normaliser state z is
  // the same recurrence with v replaced by ones: z_t = a_t z_{t-1} + c_t k_t.
  kSumOfKeys,
};

struct DecayAttentionArgs {
  int batch = 0, seq_len = 0;  // B, T
  int num_heads = 0;           // H: heads of the output; every head count below divides it
  int num_q_heads = 0, num_k_heads = 0, num_v_heads = 0, num_decay_heads = 0;
  int head_dim_k = 0, head_dim_v = 0;  // K, V
  DecayKind decay_kind = DecayKind::kNone;
  NormKind norm_kind = NormKind::kNone;
  double scale = 1, norm_eps = 1e-30;

  // [B, T, Hq, K] fp32 or bf16 (fp64 on the CPU, for gradient checks); k and v have the same dtype
  TensorView q;
  TensorView k;    // [B, T, Hk, K]
  TensorView v;    // [B, T, Hv, V]
  TensorView out;  // [B, T, H, V]
  // Natural log, fp32 (fp64 with fp64 operands), in the shape of its kind over Hd heads. A
  // per-token decay may be -inf. On CUDA, a constant decay must be contiguous.
  TensorView log_decay;
  TensorView key_scale;  // c_t [B, T, H] fp32; absent: 1

  // A sequence carries a state in and out. The sequences are the rows of the batch or, if the batch
  // is one row of packed sequences, each of these. Sequence n owns chunks [sequence_begin[n],
  // sequence_begin[n + 1]), in order. If it has no chunks, its final state is its initial state.
  int num_sequences = 0, num_chunks = 0;
  // [num_chunks] in the device's memory; built by MakeChunkTable. The entries from
  // sequence_begin[num_sequences] on are unused.
  const ChunkEntry* chunks = nullptr;
  const int32_t* sequence_begin = nullptr;  // [num_sequences + 1]

  // All fp32 (fp64 with fp64 operands) and contiguous. Null input: zero. Null output: not computed.
  const void* initial_state = nullptr;  // [num_sequences, H, K, V]
  void* final_state = nullptr;          // [num_sequences, H, K, V]
  const void* initial_norm = nullptr;   // [num_sequences, H, K]: z, with kSumOfKeys
  void* final_norm = nullptr;           // [num_sequences, H, K]

  // Written by a forward that will be differentiated, and read by its backward.
  void* norm_denom = nullptr;  // [B, T, H] fp32: d + eps, with kSumOfKeys
  // CheckpointBytes() bytes: the states before every plan.checkpoint_every-th chunk. Null:
  // inference.
  void* checkpoints = nullptr;

  // ForwardWorkspaceBytes(), or the size for another kind of call. Contents are undefined before
  // and after.
  void* workspace = nullptr;
};

// A gradient has the shape of its operand. The gradients of H output heads are summed over the
// heads that share an operand head.
struct DecayAttentionGradArgs {
  DecayAttentionArgs forward;  // the forward's arguments; `out` is read only with kSumOfKeys
  TensorView dout;             // [B, T, H, V]
  TensorView dq, dk, dv;       // all are written
  // [Hd], [Hd, K], [B, T, Hd] or [B, T, Hd, K], fp32 (fp64); absent: not computed
  TensorView dlog_decay;
  TensorView dkey_scale;               // [B, T, H] fp32 (fp64); absent: not computed
  const void* dfinal_state = nullptr;  // [num_sequences, H, K, V]; null: zero
  void* dinitial_state = nullptr;      // null: not computed
  const void* dfinal_norm = nullptr;   // [num_sequences, H, K]
  void* dinitial_norm = nullptr;
};

// The properties of a device on which the schedule depends.
struct DeviceLimits {
  bool is_cuda = false;
  // CUDA: number of multiprocessors. The CPU's schedule ignores its number of threads, so the
  // number of threads never changes a bit of the result.
  int num_sms = 1;
  int64_t shared_memory_bytes = 0;  // CUDA: maximum bytes per block
  // CUDA: the device has Hopper's warpgroup instructions (wgmma), and they are enabled
  bool warpgroups = false;
};

// CUDA: whether the kernels with Hopper's warpgroup instructions (wgmma) may run.
enum class WarpgroupUse : uint8_t {
  kAuto,  // if the device has them, the shape allows it and HALFLIFE_WARPGROUPS is not 0
  kOff,   // never: the mma.sync kernels run on every device
};

// The parts of a plan that the caller has chosen. 0: MakePlan chooses.
struct PlanRequest {
  int chunk_size = 0;    // the chunk size with which args.chunks was built
  int num_segments = 0;  // for both directions of the plan
  int batch_tiles = 0;   // CUDA: for both directions of the plan
  WarpgroupUse warpgroups = WarpgroupUse::kAuto;
};

// CUDA: the part [k, v] of a state [K, V] that one block of a scan owns. A wider head is cut into
// slices, one per block. {0, 0}: no tensor-core scan supports the problem.
struct DecayBlock {
  int k = 0, v = 0;
};

struct DecayAttentionPlan {
  int chunk_size = 0;        // upper bound of the chunk lengths in args.chunks
  int checkpoint_every = 4;  // chunks between saved states
  // Parts of each sequence that are scanned in parallel; 1: a single fused pass. CUDA's reverse
  // scans have other blocks and therefore their own number of parts.
  int num_segments = 1, backward_segments = 1;
  // CUDA: number of batch tiles (groups of rows) that run one after the other in the same
  // workspace.
  int forward_batch_tiles = 1, backward_batch_tiles = 1;
  // CPU: how many chunks one head advances before the thread switches to its next head (a multiple
  // of checkpoint_every). Affects cache reuse, never the result.
  int block_chunks = 1 << 30;
  bool is_cuda = false;
  DecayBlock forward, backward;
  // CUDA: whether the products use wgmma. The backward then processes all chunks in parallel.
  bool forward_warpgroups = false, backward_warpgroups = false;
};
// Chooses a plan, as a pure function of shape, device and request. Throws Error (exit 2) that lists
// every problem of the shape.
DecayAttentionPlan MakePlan(const DecayAttentionArgs& args, const DeviceLimits& limits,
                            const PlanRequest& request = {});
size_t ForwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
size_t BackwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// For Summarise and BackwardSummarise, which have no outputs to sum.
size_t SummaryWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
size_t ReverseSummaryWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
size_t CheckpointBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

// One token per sequence. The state is updated in place.
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
  // [B]: the state slot of each row; null: row b uses slot b. Negative: no state, and out is zero.
  const int32_t* slots = nullptr;
};

// The state contract of a segment of a sequence (one rank's part): S_out = exp(log_transition) S_in
// + state.
struct DecaySegmentArgs {
  // Summarise reads k and v. BackwardSummarise reads q and, with kSumOfKeys, the out and norm_denom
  // of the segment's own forward.
  DecayAttentionArgs forward;
  TensorView dout;  // read only by BackwardSummarise
  // [num_sequences, H, K or 1] fp32, with size K if the decay is per channel. -inf if a document
  // starts in the segment. Null: not computed.
  void* log_transition = nullptr;
  // [num_sequences, H, K, V]: the final state if the segment starts from zero. BackwardSummarise:
  // dL/d(initial state) if dL/d(final state) is zero.
  void* state = nullptr;
  void* norm = nullptr;  // [num_sequences, H, K]: the same for z, with kSumOfKeys
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
