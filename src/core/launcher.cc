#include "core/launcher.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <optional>

namespace halflife {
namespace {

// The value of the first of these variables that holds a number.
std::optional<int> ReadNumber(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') continue;
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end == '\0') return static_cast<int>(value);
  }
  return std::nullopt;
}

}  // namespace

LauncherEvidence ReadLauncherEvidence() {
  LauncherEvidence evidence;
  std::optional<int> rank = ReadNumber({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"});
  const bool slurm_step = ReadNumber({"SLURM_STEP_ID"}).has_value();
  if (!rank && slurm_step) rank = ReadNumber({"SLURM_PROCID"});
  if (!rank) return evidence;
  evidence.launched = true;
  evidence.rank = *rank;
  std::optional<int> size = ReadNumber({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  if (!size && slurm_step) size = ReadNumber({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  evidence.world_size = size.value_or(1);
  evidence.local_size =
      ReadNumber({"OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"}).value_or(1);
  evidence.has_pmi = ReadNumber({"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}).has_value();
  return evidence;
}

bool MakesARank(std::string_view variable) {
  constexpr const char* kPrefixes[] = {"OMPI_COMM_WORLD_", "OMPI_MCA_orte_", "OMPI_MCA_ess",
                                       "OMPI_MCA_pmix",    "PMIX_",          "PMI_",
                                       "SLURM_STEP_",      "SLURM_PROCID=",  "SLURM_LOCALID="};
  return std::ranges::any_of(kPrefixes,
                             [&](const char* prefix) { return variable.starts_with(prefix); });
}

}  // namespace halflife
