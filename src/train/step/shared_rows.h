// The rows of this rank, where several ranks share them (parallel.sp).
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
  std::unique_ptr<dist::Communicator> ranks;        // that share them; null: none do
  std::optional<model::SequenceParallel> parallel;  // over these ranks
};

// Collective. Error kUsage where the ranks' hosts do not allow the config's mesh. `device`: of the
// rows; what an exchange between their ranks costs is measured on it.
SharedRows ShareRows(const RunConfig& config, dist::RankContext& context, Device device);

}  // namespace halflife::train
