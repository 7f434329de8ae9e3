// The backward of the delta rule on a GPU, after the forward's arrays are recomputed
// (workspace.h). C++17, so that plans and tests can include it.
//
// With R the gradient of the state after the chunk, and the names of workspace.h:
//
//   dU = A^T dout + (k Q) R         R' = Gamma R + (scale q P)^T dout - W^T dU
//   Lambda = X^T dU                 dv_r = beta_r Lambda_r
//   D_rs = dout_r . u_s, s <= r     F_rs = Lambda_r . u_s, s < r
//   rho_r = P_r (S Lambda_r) + sum_{s < r} F_rs w_rs k_s
//   dbeta_r = Lambda_r . v_r - k_r . rho_r
//   dq_r = scale (P_r (S dout_r) + sum_{s <= r} D_rs w_rs k_s)
//   dk_r = Q_r (R u_r) - beta_r rho_r
//          + sum_{t >= r} scale D_tr w_tr q_t - sum_{t > r} beta_t F_tr w_tr k_t
//
// R' is the gradient of the state before the chunk. The gradient of u = X diag(beta) (v - (k P) S)
// with respect to X is never computed: it is L's gradient -Lambda u^T, restricted to s < r. dbeta
// divides by nothing, so beta may be 0.
//
//   adjoint scan      scores, k_exit, q_entry, through, w, dout -> du, adjoints, dinitial_state
//   chunk gradients   the forward's arrays, du, adjoints -> dq, dk, dv, dlog_decay, dbeta
//   sums              dq and dk of the value heads that share a head
//
// The adjoint scan is serial over the chunks of a sequence, and its columns of V are independent.
// The chunk gradients treat all chunks in parallel. No kernel uses atomic additions, so the bits
// of a result do not vary.
#pragma once

#include <cstddef>

#include "kernels/delta_rule/cuda/workspace.h"
#include "kernels/delta_rule/delta_rule_args.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels::delta {

// The backward's own arrays, laid out like those of Workspace.
struct BackwardArrays {
  void* du = nullptr;        // [N, HV, 64, V'] T
  void* adjoints = nullptr;  // [N, HV, V', K'] T: R^T, for the state after the chunk
  // [B, T, HV, K] fp32: the gradients of each value head. Null if no value heads share a head.
  float* dq = nullptr;
  float* dk = nullptr;
};
size_t BackwardArrayBytes(const DeltaRuleArgs& args);
// Divides `memory` of BackwardArrayBytes(), aligned to 256 bytes, into arrays.
BackwardArrays DivideBackwardArrays(const DeltaRuleArgs& args, void* memory);

// Returns true if the adjoint scan uses Hopper's warpgroup instructions: CanUseWgmma, V is a
// multiple of 64, and TMA can read dout.
bool CanScanAdjointByWgmma(const DeltaRuleArgs& args, const TensorView& dout);

// Computes all gradients, for heads that cuda::SupportsDeltaRuleBackward() accepts. `workspace` has
// the arrays of Purpose::kBackward, recomputed.
void LaunchBackward(const DeltaRuleGradArgs& grads, const Workspace& workspace,
                    const BackwardArrays& arrays, cudaStream_t stream);
// Computes Z [num_sequences, HV, K, V] of DeltaSegmentArgs: the adjoint scan from zero. `workspace`
// has scores, k_exit, q_entry, through and w.
void LaunchAdjointSummary(const DeltaSegmentArgs& segment, const Workspace& workspace,
                          cudaStream_t stream);

}  // namespace halflife::kernels::delta
