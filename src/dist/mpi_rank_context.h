// Creates the RankContexts of a process that mpirun or srun started.
#pragma once

#include <functional>
#include <memory>

#include "dist/rank_context.h"

namespace halflife::dist {

// Initialises MPI. `evidence` describes the environment; MPI must agree with it.
std::unique_ptr<RankContext> MakeMpiRankContext(const RankConfig& config,
                                                const LauncherEvidence& evidence);

// Initialises MPI, runs `body` on `count` threads, each of which is a rank of the world, and joins
// them. The first exception that is a cause ends all ranks of the process and is rethrown here.
void RunMpiRanks(int count, const RankConfig& config, const LauncherEvidence& evidence,
                 const std::function<void(RankContext& context)>& body);

// Throws Error kUsage for a CUDA device: ranks that are threads of one process cannot have a GPU
// each.
void RequireCpuOfThreads(Device device);

// Returns the ranks whose value differs from the most frequent value. Among equally frequent
// values, the one of the lowest rank counts as the most frequent.
std::vector<int> OddRanks(const std::vector<std::string>& values);

// Throws Error kUsage "ranks disagree about the config", naming the differing ranks and both
// hashes.
void CheckSameConfig(Communicator& control, const std::string& config_hash);

// Returns NCCL over the ranks of `control`, or a Self communicator for a single rank. Throws Error
// kEnvironment in a build without CUDA.
std::unique_ptr<Communicator> MakeDeviceWorld(Communicator& control, Device device,
                                              double timeout_s, double init_timeout_s);

}  // namespace halflife::dist
