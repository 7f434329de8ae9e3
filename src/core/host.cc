#include "core/host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>  // defines __GLIBC__, if anything does
#include <fstream>
#include <initializer_list>
#include <optional>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HALFLIFE_HEAP_IS_GLIBCS 1
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#endif

namespace halflife {
namespace {

namespace fs = std::filesystem;

// Returns MemTotal plus SwapTotal of /proc/meminfo in bytes. The file has KiB.
uint64_t MemoryAndSwap(const fs::path& proc) {
  std::ifstream meminfo(proc / "meminfo");
  uint64_t kib = 0;
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("MemTotal:") || line.starts_with("SwapTotal:"))
      kib += std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10);
  }
  return kib * 1024;
}

// Reads a cgroup limit file, which contains a number of bytes or "max".
uint64_t ReadLimit(const fs::path& file) {
  uint64_t bytes = UINT64_MAX;
  std::ifstream(file) >> bytes;
  return bytes == 0 ? UINT64_MAX : bytes;
}

// Returns the smallest limit of this process's cgroup and all its ancestors. In a container the
// cgroup's own path may not exist; the limit is then in the top folder.
uint64_t CgroupLimit(const fs::path& proc, const fs::path& cgroups) {
  uint64_t limit = UINT64_MAX;
  const auto walk = [&](const fs::path& top, std::string path, const char* file) {
    for (; !path.empty(); path.resize(path.rfind('/')))
      limit = std::min(limit, ReadLimit(top / path.substr(1) / file));
    limit = std::min(limit, ReadLimit(top / file));
  };
  std::ifstream own(proc / "self" / "cgroup");
  for (std::string line; std::getline(own, line);) {
    const std::string path = line.substr(line.rfind(':') + 1);
    if (!path.starts_with('/')) continue;
    if (line.starts_with("0::")) walk(cgroups, path, "memory.max");
    if (line.find(":memory:") != std::string::npos)
      walk(cgroups / "memory", path, "memory.limit_in_bytes");
  }
  return limit;
}

}  // namespace

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

int NumUsableCores() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

uint64_t HostMemoryBytes(const fs::path& proc, const fs::path& cgroups) {
  const uint64_t installed = MemoryAndSwap(proc);
  return installed == 0 ? 0 : std::min(installed, CgroupLimit(proc, cgroups));
}

namespace {

// Returns the value of the first of these variables that holds a number.
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

#ifdef HALFLIFE_HEAP_IS_GLIBCS
namespace {

void KeepFreedMemory() {
  // A block with its own mapping is unmapped when it is freed, and M_MMAP_THRESHOLD cannot exceed
  // 32 MiB.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);  // never return the end of the heap to the kernel
}

bool IsUnlimited(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

// Returns true if reserved addresses that are never written to use no memory.
bool AddressesAreFree() {
  int overcommit = 2;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  return overcommit != 2 && IsUnlimited(RLIMIT_AS) && IsUnlimited(RLIMIT_DATA) &&
         std::getenv("MALLOC_PERTURB_") == nullptr;
}

// Allocates and frees the largest block so far. Once it is freed, the heap grows into its
// addresses.
void RequestHugePages() {
  constexpr uintptr_t kPage = 2 << 20;
  const size_t bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 4 * 3 *
                       static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const block = std::malloc(bytes);
  if (block == nullptr) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(block) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(block) + bytes) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  std::free(block);
}

}  // namespace

void PrepareHeap() {
  KeepFreedMemory();
  if (AddressesAreFree()) RequestHugePages();
}
#else
void PrepareHeap() {}
#endif

}  // namespace halflife
