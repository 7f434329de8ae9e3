#include "cli/doctor/checks.h"

#include "core/error.h"
#include "core/files.h"

namespace halflife::cli::doctor {
namespace {

constexpr LocalCheck kLocalChecks[] = {
    {"libraries", &CheckLibraries},
    {"libraries", &CheckMpirun},
    {"GPU", &CheckGpus},
    {"CPU and threads", &CheckCpu},
    {"CPU and threads", &CheckBinding},
    {"limits", &CheckLimits},
    {"limits", &CheckSharedMemory},
    {"network", &CheckHostName},
    {"network", &CheckInfiniBand},
    {"network", &CheckSlurm},
    {"disk", &CheckDisk},
};

constexpr WorldCheck kWorldChecks[] = {
    {"ranks", &CheckRankPlaces},
    {"ranks", &CheckAllReduce},
};

}  // namespace

std::span<const LocalCheck> LocalChecks() { return kLocalChecks; }
std::span<const WorldCheck> WorldChecks() { return kWorldChecks; }

std::string Scene::Read(const std::filesystem::path& path) const {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return "";
  try {
    return ReadFile(path, ExitCode::kEnvironment);
  } catch (const Error&) {
    return "";  // The checks that need the file report that it is missing.
  }
}

Group Run(const LocalCheck& check, const Scene& scene) {
  try {
    return {check.group, check.run(scene)};
  } catch (const std::exception& error) {
    return {check.group, {{Verdict::kFail, check.group, error.what()}}};
  }
}

}  // namespace halflife::cli::doctor
