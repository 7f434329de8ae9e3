// This process's place among the ranks according to the environment, known before MPI starts.
#pragma once

#include <string_view>

namespace halflife {

// Read from the variables of Open MPI, PMI and Slurm. Without a launcher: rank 0 of 1.
struct LauncherEvidence {
  bool launched = false;  // started by mpirun or srun
  int rank = 0;
  int world_size = 1;
  int local_size = 1;  // ranks on this host; 1 if the launcher does not report it
  // The launcher provides PMI, so MPI can be initialized as one of several ranks.
  bool has_pmi = false;
};
LauncherEvidence ReadLauncherEvidence();

// True if a variable, "NAME=value", makes a process a rank of a launcher's job. A process that
// starts its own job removes these variables from the environment.
bool MakesARank(std::string_view variable);

}  // namespace halflife
