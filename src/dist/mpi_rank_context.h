// The RankContexts of a process that mpirun or srun started.
#pragma once

#include <functional>
#include <memory>

#include "dist/rank_context.h"

namespace halflife::dist {

// Initialises MPI. `evidence` is what the environment says; MPI must agree.
std::unique_ptr<RankContext> MakeMpiRankContext(const RankConfig& config,
                                                const LauncherEvidence& evidence);

// Initialises MPI and runs body on `count` threads, each a rank of the world; joins them. The first
// exception that was a cause ends the process's ranks and is thrown again here.
void RunMpiRanks(int count, const RankConfig& config, const LauncherEvidence& evidence,
                 const std::function<void(RankContext& context)>& body);

// Error kUsage: ranks that are threads of one process cannot have a GPU each.
void RequireCpuOfThreads(Device device);

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
