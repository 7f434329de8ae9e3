// The checks of `halflife doctor`: a table of functions, each looking at one thing and returning
// its findings. Local checks run in each process before the ranks meet; world checks are
// collective.
//
// A new check is a function here and a row in checks.cc.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cli/doctor/finding.h"
#include "dist/rank_context.h"

namespace halflife::cli::doctor {

// Where the checks look. Tests put folders of their own here.
struct Scene {
  std::filesystem::path proc = "/proc", sys = "/sys", shm = "/dev/shm";
  std::filesystem::path run_folder = "runs";  // checkpoints go below it; need not exist
  bool measure = true;                        // run the disk and all-reduce tests
  LauncherEvidence launcher = {};

  // The text of a system file; "" where it is not there.
  std::string Read(const std::filesystem::path& path) const;
};

struct LocalCheck {
  const char* group;
  std::vector<Finding> (*run)(const Scene&);
};
std::span<const LocalCheck> LocalChecks();

struct WorldCheck {
  const char* group;
  // Findings on rank 0; empty on the others.
  std::vector<Finding> (*run)(const Scene&, dist::RankContext&);
};
std::span<const WorldCheck> WorldChecks();

// Runs one, turning an exception into a FAIL with its words.
Group Run(const LocalCheck& check, const Scene& scene);

// libraries.cc
std::vector<Finding> CheckLibraries(const Scene& scene);
std::vector<Finding> CheckMpirun(const Scene& scene);
// gpu.cc
std::vector<Finding> CheckGpus(const Scene& scene);
// cpu.cc
std::vector<Finding> CheckCpu(const Scene& scene);
std::vector<Finding> CheckBinding(const Scene& scene);
// limits.cc
std::vector<Finding> CheckLimits(const Scene& scene);
std::vector<Finding> CheckSharedMemory(const Scene& scene);
// network.cc
std::vector<Finding> CheckHostName(const Scene& scene);
std::vector<Finding> CheckInfiniBand(const Scene& scene);
std::vector<Finding> CheckSlurm(const Scene& scene);
// disk.cc
std::vector<Finding> CheckDisk(const Scene& scene);
// ranks.cc
std::vector<Finding> CheckRankPlaces(const Scene& scene, dist::RankContext& context);
std::vector<Finding> CheckAllReduce(const Scene& scene, dist::RankContext& context);

}  // namespace halflife::cli::doctor
