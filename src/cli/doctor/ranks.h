// What only the ranks together can tell: where each of them runs, and whether sums between them
// come out right.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/finding.h"
#include "core/tensor_ref.h"
#include "dist/communicator.h"

namespace halflife::cli::doctor {

struct RankPlace {
  std::string host;
  std::vector<int> cpus;  // that the rank may run on
  int threads = 1;        // that it computes with
};
// One finding a host: WARN where a rank has fewer cores than threads, or all of them together.
std::vector<Finding> JudgePlaces(const std::vector<RankPlace>& places);

// FAIL where ranks compute on different devices, "cuda" and "cpu", which cannot sum with each
// other; nothing where all are of one.
std::vector<Finding> JudgeDevices(const std::vector<std::string>& of_ranks);

// Collective. Sums fp32 tensors of growing size, compares every element with the exact sum, and
// measures for about `seconds` in all. On rank 0 one finding a size, in GB/s of the tensor (bytes
// over time, whatever the algorithm moves); empty elsewhere.
std::vector<Finding> TestAllReduce(dist::Communicator& comm, Device device, double seconds);

}  // namespace halflife::cli::doctor
