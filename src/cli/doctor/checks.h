// The checks of `halflife doctor`: a table of functions that each check one thing and return
// findings. Local checks run in each process before the ranks connect. World checks are collective.
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

// The places that checks read. Tests use folders of their own.
struct Scene {
  std::filesystem::path proc = "/proc", sys = "/sys", shm = "/dev/shm";
  // Checkpoints are written below it. It need not exist.
  std::filesystem::path run_folder = "runs";
  bool measure = true;  // Run the disk and all-reduce tests.
  LauncherEvidence launcher = {};

  // Returns the text of a system file, or "" if it does not exist.
  std::string Read(const std::filesystem::path& path) const;
};

struct LocalCheck {
  const char* group;
  std::vector<Finding> (*run)(const Scene&);
};
std::span<const LocalCheck> LocalChecks();

struct WorldCheck {
  const char* group;
  // Returns the findings on rank 0, and an empty list on the others.
  std::vector<Finding> (*run)(const Scene&, dist::RankContext&);
};
std::span<const WorldCheck> WorldChecks();

// Runs one check. An exception becomes a FAIL with its message.
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
