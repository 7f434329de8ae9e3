#include "kernels/decay_attention/cpu/checks.h"

#include "core/error.h"
#include "kernels/decay_attention/cpu/kernels.h"
#include "kernels/decay_attention/decay_attention_call_checks.h"

namespace halflife::kernels::cpu {
namespace {

constexpr PlanLimits kLimits = {.device = "the CPU",
                                .min_chunk_size = 1,
                                .max_chunk_size = kMaxChunkSize,
                                .max_checkpoint_every = kMaxCheckpointEvery};

void CheckPlan(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
               size_t workspace_bytes) {
  CheckPlanAndTable(args, plan, kLimits, workspace_bytes);
  for (int i = 0; i < args.num_chunks; ++i) {
    const ChunkEntry& chunk = args.chunks[i];
    HL_CHECK(chunk.length >= 1 && chunk.length <= plan.chunk_size && chunk.row >= 0 &&
                 chunk.row < args.batch && chunk.token >= 0 &&
                 chunk.token + chunk.length <= args.seq_len,
             "decay attention: chunk ", i, " is row ", chunk.row, ", tokens ", chunk.token, " + ",
             chunk.length, ", but the batch is [", args.batch, ", ", args.seq_len,
             "] in chunks of ", plan.chunk_size);
  }
}

}  // namespace

void CheckCall(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  CheckPlan(args, plan, ForwardWorkspaceBytes(args, plan));
  CheckForwardTensors(args);
}

void CheckCall(const DecayAttentionGradArgs& args, const DecayAttentionPlan& plan) {
  CheckPlan(args.forward, plan, BackwardWorkspaceBytes(args.forward, plan));
  CheckGradientTensors(args);
  HL_CHECK(args.forward.num_chunks == 0 || args.forward.checkpoints != nullptr,
           "decay attention: a backward without the forward's checkpoints");
}

void CheckCall(const DecaySegmentArgs& args, const DecayAttentionPlan& plan, bool reverse) {
  CheckPlan(args.forward, plan, ForwardWorkspaceBytes(args.forward, plan));
  CheckSummary(args, reverse);
  if (args.forward.num_chunks == 0) return;
  if (reverse) {
    CheckRead("q", args.forward.q);
    CheckRead("dout", args.dout);
  } else {
    CheckRead("k", args.forward.k);
    CheckRead("v", args.forward.v);
  }
}

}  // namespace halflife::kernels::cpu
