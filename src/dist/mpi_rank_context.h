// The RankContext of a process that mpirun or srun started.
#pragma once

#include <memory>

#include "dist/rank_context.h"

namespace halflife::dist {

// Initialises MPI. `evidence` is what the environment says; MPI must agree.
std::unique_ptr<RankContext> MakeMpiRankContext(const RankConfig& config,
                                                const LauncherEvidence& evidence);

// Ranks whose value differs from the most frequent one (of equally frequent ones, the lowest
// rank's).
std::vector<int> OddRanks(const std::vector<std::string>& values);

// Throws Error kUsage "ranks disagree about the config", naming the odd ranks and both hashes.
void CheckSameConfig(Communicator& control, const std::string& config_hash);

// NCCL over the ranks of `control`, which one alone does without. Error kEnvironment in a build
// without CUDA.
std::unique_ptr<Communicator> MakeDeviceWorld(Communicator& control, Device device,
                                              double timeout_s, double init_timeout_s);

}  // namespace halflife::dist
