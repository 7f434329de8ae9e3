// What the environment says of this process's place among ranks, before MPI.
#pragma once

#include <string_view>

namespace halflife {

// From Open MPI's, PMI's and Slurm's variables. {0, 1, 1} without a launcher.
struct LauncherEvidence {
  bool launched = false;  // under mpirun or srun
  int rank = 0;
  int world_size = 1;
  int local_size = 1;    // ranks on this host, where the launcher tells
  bool has_pmi = false;  // a launcher that MPI can ask
};
LauncherEvidence ReadLauncherEvidence();

// Whether a variable, "NAME=value", makes a process a rank of a launcher's job: what a process that
// starts a job of its own leaves out.
bool MakesARank(std::string_view variable);

}  // namespace halflife
