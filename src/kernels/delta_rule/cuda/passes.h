// The passes of the delta rule on a GPU and their launches (see workspace.h). C++17.
#pragma once

#include "kernels/delta_rule/cuda/workspace.h"

namespace halflife::kernels::delta {

struct PrepareParams {
  DeltaRuleArgs args;
  Workspace workspace;
};

struct ScanParams {
  DeltaRuleArgs args;
  Workspace workspace;
  // The width of the state's rows: V, or K if the state is a transition M, which has no values:
  // the kernel then reads no u, and stores neither u nor states.
  int values = 0;
  bool from_identity = false;  // else from initial_state, or from zero if that is null
  // Each group of kDeltaCheckpointEvery chunks from its checkpoint, instead of whole sequences.
  bool from_checkpoints = false;
  const float* initial_state = nullptr;  // [num_sequences, HV, K, values]
  float* final_state = nullptr;          // the same; null: not computed
  float* checkpoints = nullptr;          // written, or read with from_checkpoints
};

// Computes W, U~ and the decayed operands of all chunks; with `operand` only that, `entry` and
// `scores`. Stores `inverse`, and `q_entry` with `scores`, only if the workspace has them.
void LaunchPrepare(const DeltaRuleArgs& args, const Workspace& workspace, cudaStream_t stream);
// Computes the states before all chunks, and U, from the checkpoints of args.
void LaunchRecomputeStates(const DeltaRuleArgs& args, const Workspace& workspace,
                           cudaStream_t stream);
void LaunchScan(const ScanParams& params, cudaStream_t stream);
// Scans with wgmma, on sm_90a. `outputs`: also computes args.out, and then stores neither U nor
// states. Requires CanUseWgmma.
void LaunchWarpgroupScan(const ScanParams& params, bool outputs, cudaStream_t stream);
// Computes outputs and states on sm_90a from `operand`, `entry` and `scores`. Requires
// CanScanTokensByWgmma.
void LaunchTokenScan(const ScanParams& params, cudaStream_t stream);
// out, from the results of the other passes.
void LaunchOutput(const DeltaRuleArgs& args, const Workspace& workspace, cudaStream_t stream);

}  // namespace halflife::kernels::delta
