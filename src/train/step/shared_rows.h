// The rows of this rank, if several ranks share them (parallel.sp).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "dist/rank_context.h"
#include "model/sequence_parallel.h"
#include "train/config/run_config.h"

namespace halflife::train {

// Returns the strategy that parallel.exchange names.
ops::StateStrategy StrategyOf(const std::string& exchange);

struct SharedRows {
  // The ranks that share the rows. Null: they are not shared.
  std::unique_ptr<dist::Communicator> ranks;
  std::optional<model::SequenceParallel> parallel;  // Over these ranks.
};

// Collective. Throws Error kUsage if the placement of ranks on hosts does not support the config's
// mesh. `device` is the device of the rows, on which the cost of exchanges is measured.
SharedRows ShareRows(const RunConfig& config, dist::RankContext& context, Device device);

}  // namespace halflife::train
