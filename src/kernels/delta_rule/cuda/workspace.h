// The intermediate results of a call on a GPU, which its kernels pass to each other through the
// workspace. C++17, without CUDA headers, so that plans and tests can include it.
//
// A chunk has at most 64 tokens, here rows. In a shorter chunk the rows past its end are as if k,
// q, v and beta were zero and the decay were 1. With P_r the decay from the chunk's start to row r
// (inclusive), Q_s from after row s to the chunk's end, w_rs from after row s to row r, Gamma
// through the chunk, and S the state before it:
//
//   L_rs = beta_r (k_r w_rs) k_s, s < r      X = (I + L)^-1
//   W = X diag(beta) (k P)                   U~ = X diag(beta) v
//   U = U~ - W S                             out = (scale q P) S + A U
//   A_rs = scale (q_r w_rs) k_s, s <= r      S' = Gamma S + (k Q)^T U
//
// The passes `prepare` and `output` process all chunks in parallel. `scan` is serial over the
// chunks of a sequence, or over those between two checkpoints. Only `prepare` depends on the kind
// of decay.
//
//   prepare   q, k, v, log_decay, beta -> inverse, w, u (U~), k_exit, through, q_entry, scores
//   scan      w, u (U~), k_exit, through -> states, u (U), final state, checkpoints
//   output    q_entry, scores, states, u -> out
//
// With Hopper's warpgroup instructions, one scan computes the states and the outputs
// (warpgroup_scan.cuh). Unless decays are per channel, it then needs less of `prepare`
// (token_scan.cuh):
//
//   prepare   k, q, log_decay, beta -> operand, entry, scores
//   scan      q, k, v, operand, entry, scores -> out, final state, checkpoints
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/delta_rule/delta_rule_args.h"

namespace halflife::kernels::delta {

constexpr int kChunk = kDeltaChunkSize;
// fp32 operands with decays per channel fit shared memory only up to this K.
constexpr int kMaxChannelKeysF32 = 128;
// Gradients of fp32 operands fit up to this K, with every kind of decay.
constexpr int kMaxGradientKeysF32 = 128;
// The width of the slices of V that blocks of the scan own. Rows of V are padded to whole slices.
constexpr int kValueSlice = 32;

// Returns K as the kernels are instantiated. Columns from K on are zero.
HL_EVERYWHERE constexpr int PaddedKeys(int head_dim_k) {
  return head_dim_k <= 64 ? 64 : head_dim_k <= 128 ? 128 : 256;
}
HL_EVERYWHERE constexpr int PaddedValues(int head_dim_v) {
  return (head_dim_v + kValueSlice - 1) / kValueSlice * kValueSlice;
}

// Return the bytes of shared memory of the largest block of a forward, and of a forward and its
// gradients. The kernels' files check these numbers. `keys`: K'. The kernels with Hopper's
// instructions are not counted, because every GPU that has these instructions has enough memory.
constexpr int ForwardBlockBytes(bool is_bf16, int keys, bool per_channel) {
  if (is_bf16) {
    if (per_channel) return keys == 64 ? 80128 : keys == 128 ? 112896 : 194048;
    return keys == 64 ? 68176 : keys == 128 ? 84992 : 160768;
  }
  if (per_channel) return keys == 64 ? 104704 : 162816;
  return keys == 64 ? 92752 : keys == 128 ? 162816 : 191056;
}
constexpr int BackwardBlockBytes(bool is_bf16, int keys, bool per_channel) {
  if (is_bf16) {
    if (per_channel) return keys == 64 ? 93696 : keys == 128 ? 159232 : 194048;
    return keys == 64 ? 73552 : keys == 128 ? 90960 : 160768;
  }
  if (per_channel) return keys == 64 ? 125440 : 207360;
  return keys == 64 ? 130896 : 164688;
}

// Arrays in the workspace, contiguous, aligned to 256 bytes, indexed by chunk n of the chunk table
// and value head: element (n, head, ...). "T" is the type of q (bf16 or fp32), K' and V' are the
// padded widths. Padding and rows past a chunk's end are written, as zeros unless noted.
struct Workspace {
  // [N, HV, 64, 64] T: X. Unit lower triangular; zero above the diagonal; rows and columns past the
  // chunk's end are those of the identity. Null: not computed (only a backward reads it).
  void* inverse = nullptr;
  // Only with CanScanTokensByWgmma, in place of the next five: diag(Q) X diag(beta) [N, HV, 64, 64]
  // T, and P [N, HV, 64] fp32. `scores` is then A X diag(beta).
  void* operand = nullptr;
  float* entry = nullptr;
  void* w = nullptr;       // [N, HV, 64, K'] T
  void* u = nullptr;       // [N, HV, 64, V'] T: U~ after `prepare`, U after `scan`
  void* k_exit = nullptr;  // [N, HV, 64, K'] T: k Q
  // [N, HV, K'] fp32: Gamma. Without decays 1; with decays per token all K' elements are equal;
  // with decays per channel the padding is 1.
  float* through = nullptr;
  void* q_entry = nullptr;  // [N, HV, 64, K'] T: scale q P. Null (with `scores`): not computed.
  void* scores = nullptr;   // [N, HV, 64, 64] T: A, zero above the diagonal
  // [N, HV, K', V'] T: the state before the chunk. Zero if a document starts there.
  void* states = nullptr;
};

// Returns true if the scans of a call use Hopper's warpgroup instructions: bf16 on a device that
// has them. The tensor maps of these scans need at least one chunk.
bool CanUseWgmma(const DeltaRuleArgs& args);

// Returns true if one wgmma scan computes a forward from q, k and v themselves (token_scan.cuh). It
// requires CanUseWgmma, no decays per channel, K of 64, 128 or 256, V a multiple of 64, and tensors
// that TMA can read as matrices.
bool CanScanTokensByWgmma(const DeltaRuleArgs& args);

// The pass, or passes, for which a workspace is allocated. It contains these arrays:
enum class Purpose : uint8_t {
  // With CanScanTokensByWgmma: operand, entry, scores. With CanUseWgmma: all except inverse and
  // states. Otherwise: all except inverse.
  kForward,
  kBackward,   // all
  kSummarise,  // w, u, k_exit, through
  kAdjoint,    // w, k_exit, through, q_entry, scores
};

// Returns the bytes of the arrays for `purpose`.
size_t WorkspaceBytes(const DeltaRuleArgs& args, Purpose purpose);
// Divides `memory` of WorkspaceBytes(), aligned to 256 bytes, into arrays.
Workspace DivideWorkspace(const DeltaRuleArgs& args, Purpose purpose, void* memory);

}  // namespace halflife::kernels::delta
