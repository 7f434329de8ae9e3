// What every kernel of decay attention demands of a call before it looks at memory: a plan within its limits, a chunk table,
// and a workspace where it needs one. C++17: CUDA's dispatch includes it.
#pragma once

#include <cstddef>

#include "core/error.h"
#include "kernels/decay_attention/args.h"

namespace halflife::kernels {

struct PlanLimits {
  const char* device;                  // as in "on the CPU"
  int min_chunk_size, max_chunk_size;  // tokens
  int max_checkpoint_every;            // chunks
};

inline void CheckPlanAndTable(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                              const PlanLimits& limits, size_t workspace_bytes) {
  HL_CHECK(plan.chunk_size >= limits.min_chunk_size && plan.chunk_size <= limits.max_chunk_size,
           "decay attention: chunks of ", plan.chunk_size, " tokens; ", limits.min_chunk_size,
           " to ", limits.max_chunk_size, " work on ", limits.device);
  HL_CHECK(plan.checkpoint_every >= 1 && plan.checkpoint_every <= limits.max_checkpoint_every,
           "decay attention: a checkpoint every ", plan.checkpoint_every, " chunks; 1 to ",
           limits.max_checkpoint_every, " work on ", limits.device);
  HL_CHECK(args.num_sequences == 0 || args.sequence_begin != nullptr,
           "decay attention: ", args.num_sequences,
           " sequences without sequence_begin; see MakeChunkTable");
  HL_CHECK(args.num_chunks == 0 || args.chunks != nullptr, "decay attention: ", args.num_chunks,
           " chunks without their table; see MakeChunkTable");
  HL_CHECK(workspace_bytes == 0 || args.workspace != nullptr, "decay attention needs ",
           workspace_bytes, " bytes of workspace, got none");
}

}  // namespace halflife::kernels
