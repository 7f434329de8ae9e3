// One optimiser step of one rank as the order of its program: pieces of compute, collectives as
// they are issued, and where the rank waits for them. The collectives come from the objects that a
// run has (dist::GradientReducer, GradientShares, dist::ParameterGather, StepScalars, the mixers'
// exchanges), driven in StepRunner's order without memory and without other ranks.
//
//   RowRehearsals rows(config, /*sp_index=*/0, cost);
//   const StepOperations step = RehearseStep(config, {.rank = 0, .world_size = 8}, rows);
//   for (const dist::RehearsedEvent& event : step.rehearsal.events()) Print(event.value);
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/rehearsal.h"
#include "ops/sequence/exchange_cost.h"
#include "train/plan/row_exchanges.h"

namespace halflife::train {

struct ComputePiece {
  enum class Kind : uint8_t { kForward, kBackward, kUpdate };
  Kind kind = Kind::kForward;
  int64_t layer = 0;  // as LanguageModel::LayerOf counts; of an update 0
  // What one micro-batch takes on this rank: multiply-adds as 2, and what has to pass through the
  // device's memory.
  double flops = 0, bytes = 0;
  double recomputed_flops = 0;  // of these: of what backward computes again
};

struct StepOperations {
  std::vector<ComputePiece> pieces = {};  // that kCompute events number
  // Holds two steps: what the first leaves under way, the second waits for. Groups of one rank have
  // no operations.
  dist::Rehearsal rehearsal = {};
  size_t second_event = 0;        // the first event of the second step
  int64_t second_operation = 0;   // its first operation
  int64_t num_micro_batches = 1;  // of a step
  int64_t tokens = 0;             // of a micro-batch on this rank
  int64_t longest_past = 0;       // tokens before a slice that a layer asks for, at most the row's
  // The sizes of the arena (ParameterArena), with padding.
  double main_and_adam_bytes = 0, gradient_bytes = 0, compute_copy_bytes = 0;
  // With ZeRO stage 2: of the buckets that are there at one time, at most.
  double bucket_slot_bytes = 0;

  // The operations of the second step.
  std::span<const dist::RehearsedOperation> operations() const {
    return std::span(rehearsal.operations()).subspan(static_cast<size_t>(second_operation));
  }
};

struct RankOfJob {
  int rank = 0, world_size = 1;
};

// `config`: complete (CompleteForPlan) for that many ranks; `rehearsals`: of the rank's slices, not
// used where parallel.sp is 1.
StepOperations RehearseStep(const RunConfig& config, const RankOfJob& rank,
                            RowRehearsals& rehearsals);

}  // namespace halflife::train
