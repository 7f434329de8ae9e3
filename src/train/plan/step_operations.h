// One optimizer step of one rank in program order: pieces of compute, collectives when they are
// issued, and the points at which the rank waits for them. The collectives come from the objects of
// a run (GradientSync, MatrixExchange, dist::ParameterGather, StepScalars, the exchanges of
// mixers), driven in the order of StepRunner without memory and without other ranks.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dist/rehearsal.h"
#include "ops/sequence/exchange_cost.h"
#include "train/config/run_config.h"

namespace halflife::train {

// The messages between ranks that share rows in a layer. They are determined by running the layer's
// mixer forward and backward on a few tokens of zeros, in a group that moves no data
// (dist/rehearsal.h). Its messages are then scaled to the rows of a job. They are linear in the
// number of rows. In the length of a slice they are constant or linear, which two lengths
// determine.

// The exchanges of one layer and one micro-batch, on one rank.
struct RowExchanges {
  std::vector<dist::RehearsedOperation> operations = {};
  // In program order. Values are indices into `operations`.
  std::vector<dist::RehearsedEvent> forward = {}, backward = {};
  // The numbers of tokens before a slice that its mixer requests.
  std::set<int64_t> reaches = {};
};

class RowRehearsals {
 public:
  // Rehearses for the rank with this slice of its rows, with the config's parallel.sp, exchange,
  // train.micro_batch, train.precision and data.seq_len. `cost` decides between strategies if
  // parallel.exchange is auto. (A run measures it.)
  RowRehearsals(const RunConfig& config, int sp_index, const ops::ExchangeCost& cost);

  // Throws Error kUsage if the layer's mixer cannot split a row over ranks. The result is cached
  // for equal mixers.
  const RowExchanges& OfLayer(const model::LanguageModel& model, int64_t layer);

 private:
  int Threads(int64_t batch) const;
  // `lengths`: lengths of the slices of a row, by rank.
  RowExchanges Rehearse(int64_t layer, int64_t batch, const std::vector<int64_t>& lengths) const;
  RowExchanges AtJobsLength(int64_t layer, int64_t batch) const;

  const RunConfig config_;
  const int sp_index_;
  const ops::ExchangeCost cost_;
  std::map<std::string, RowExchanges> layers_;  // Key: the mixer with its options and state.
};

struct ComputePiece {
  enum class Kind : uint8_t { kForward, kBackward, kUpdate };
  Kind kind = Kind::kForward;
  int64_t layer = 0;           // Numbered as in LanguageModel::LayerOf. 0 for an update.
  std::string mixer = {};      // For example "gla". Empty outside of blocks.
  int64_t state_elements = 0;  // K V of a head whose state is [K, V], for MeasuredMixingShare.
  // For one micro-batch on this rank: FLOPs (a multiply-add counts 2) of products with parameters
  // and of work between tokens (model::FlopCount), and bytes that pass through the device's memory.
  double matmul_flops = 0, mixing_flops = 0, bytes = 0;
  double recomputed_flops = 0;  // Part of flops() that backward recomputes.

  double flops() const { return matmul_flops + mixing_flops; }
};

struct StepOperations {
  std::vector<ComputePiece> pieces = {};  // Indexed by kCompute events.
  // Contains two steps: the second waits for operations that the first leaves in flight. Groups of
  // one rank have no operations.
  dist::Rehearsal rehearsal = {};
  size_t second_event = 0;        // The first event of the second step.
  int64_t second_operation = 0;   // The first operation of the second step.
  int64_t num_micro_batches = 1;  // Per step.
  int64_t tokens = 0;             // Per micro-batch on this rank.
  // Largest number of tokens before a slice that a layer requests, at most the row's.
  int64_t longest_past = 0;
  // Sizes of the arena (ParameterArena), including padding.
  double main_and_optimizer_bytes = 0, gradient_bytes = 0, compute_copy_bytes = 0;
  // Buffers of an optimizer that updates whole matrices (MatrixExchange).
  double matrix_buffer_bytes = 0;
  // With ZeRO stages 2 and 3: largest size of the buckets that exist at the same time. With stage
  // 3: size of the slots of gathered weights.
  double bucket_slot_bytes = 0, unit_bytes = 0;

  // Returns the operations of the second step.
  std::span<const dist::RehearsedOperation> operations() const {
    return std::span(rehearsal.operations()).subspan(static_cast<size_t>(second_operation));
  }
};

struct RankOfJob {
  int rank = 0, world_size = 1;
};

// `config` is complete (CompleteForPlan) for that many ranks. `rehearsals` are for the rank's
// slices and unused if parallel.sp is 1.
StepOperations RehearseStep(const RunConfig& config, const RankOfJob& rank,
                            RowRehearsals& rehearsals);

}  // namespace halflife::train
