// This machine: its name (for messages and records), memory and cores; how this process uses its
// memory; and its place among the ranks of a launcher.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace halflife {

std::string HostName();  // "unknown" if the system does not provide it

// Returns the number of cores that this process may use, at least 1. A batch system may allow fewer
// than the machine has.
int NumUsableCores();
// Upper bound of thread counts that a user can request.
constexpr int kMaxThreads = 1024;

// Returns the bytes that the processes of this machine may use together: memory plus swap, or the
// smaller limit of this process's cgroup. Returns 0 if the system does not provide the numbers. The
// folders are parameters for tests.
uint64_t HostMemoryBytes(const std::filesystem::path& proc = "/proc",
                         const std::filesystem::path& cgroups = "/sys/fs/cgroup");

// Configures the heap. For a process that allocates the same large tensors in every step. Has no
// effect if the allocator is not glibc's. It has two effects:
//
// 1. Freed memory stays with the process for its next allocation. By default glibc returns every
//    block above 32 MiB to the kernel, so that each step takes a page fault for every 4 KiB of its
//    tensors. For decay attention with rows of 1,024 columns this is a quarter of the time.
//    Resident memory stays near its peak.
//
// 2. The heap uses pages of 2 MiB if the kernel provides them on request (transparent_hugepage
//    "madvise"; under "always" it provides them without a request). The rows of one head are spread
//    over as many 4 KiB pages as the rows of all heads fill, and translating their addresses takes
//    between a tenth and a sixth of the time of decay attention with 8 heads. The pages are
//    requested in advance for a range of addresses as large as three quarters of the machine's
//    memory. Addresses that are never written to use no memory. No huge pages are requested if
//    addresses are limited or count as memory (ulimit -v or -d, vm.overcommit_memory 2), or if
//    malloc writes to the blocks that it returns (MALLOC_PERTURB_).
void PrepareHeap();

// This process's place among the ranks according to the environment, known before MPI starts.
// It is read from the variables of Open MPI, PMI and Slurm. Without a launcher: rank 0 of 1.
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
