// Checks that need all ranks: where each of them runs, and whether sums between them are correct.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/finding.h"
#include "core/tensor_ref.h"
#include "dist/communicator.h"

namespace halflife::cli::doctor {

struct RankPlace {
  std::string host;
  std::vector<int> cpus;  // CPUs that the rank may use.
  int threads = 1;        // Number of compute threads.
};
// Returns one finding per host: WARN if a rank, or all ranks together, have more threads than
// cores.
std::vector<Finding> JudgePlaces(const std::vector<RankPlace>& places);

// FAIL if ranks compute on different kinds of device ("cuda" and "cpu"), which cannot sum with each
// other. Empty if all are equal.
std::vector<Finding> JudgeDevices(const std::vector<std::string>& of_ranks);

// Collective. Sums fp32 tensors of growing size, compares every element with the exact sum, and
// measures for about `seconds` in total. Returns one finding per size on rank 0, in GB/s of the
// tensor (bytes over time, independent of the algorithm's traffic), and an empty list on other
// ranks.
std::vector<Finding> TestAllReduce(dist::Communicator& comm, Device device, double seconds);

}  // namespace halflife::cli::doctor
