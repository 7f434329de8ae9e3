// Checks cores, their instruction sets, threads, and the placement of ranks by mpirun.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cli/doctor/checks.h"
#include "cli/doctor/system_files.h"
#include "core/concat.h"
#include "core/human.h"
#include "kernels/common/cpu/instruction_set.h"

namespace halflife::cli::doctor {
namespace {

namespace fs = std::filesystem;

std::string Plural(double count, const char* noun) {
  return Concat(count, " ", noun, count == 1 ? "" : "s");
}

// Returns the tightest quota of this process's cgroup and its ancestors, in cores.
std::optional<double> CgroupCores(const CheckInputs& inputs) {
  const std::string cgroups = inputs.Read(inputs.proc / "self/cgroup");
  std::optional<double> cores;
  const auto tighten = [&cores](std::optional<double> quota) {
    if (quota && (!cores || *quota < *cores)) cores = quota;
  };
  const auto walk = [](const fs::path& root, const std::string& below, const auto& visit) {
    fs::path at = fs::path(below).relative_path();
    while (true) {
      visit(root / at);
      if (at.empty()) break;
      at = at.parent_path();
    }
  };
  walk(inputs.sys / "fs/cgroup", ParseCgroupPath(cgroups, ""),
       [&](const fs::path& folder) { tighten(ParseCpuMax(inputs.Read(folder / "cpu.max"))); });
  walk(inputs.sys / "fs/cgroup/cpu", ParseCgroupPath(cgroups, "cpu"), [&](const fs::path& folder) {
    const std::string quota = inputs.Read(folder / "cpu.cfs_quota_us");
    const std::string period = inputs.Read(folder / "cpu.cfs_period_us");
    tighten(ParseCpuMax(quota.substr(0, quota.find('\n')) + " " + period));
  });
  return cores;
}

Finding Instructions(const CheckInputs& inputs) {
  using kernels::cpu::InstructionSet;
  const std::string model = ParseField(inputs.Read(inputs.proc / "cpuinfo"), "model name");
  const InstructionSet used = kernels::cpu::InstructionSetInUse(),
                       widest = kernels::cpu::UsableInstructionSets().front();
  Finding finding{Verdict::kOk, "kernels",
                  Concat(NameOf(used), " on ", model.empty() ? "an unnamed CPU" : model)};
  if (used != widest) {
    finding.verdict = Verdict::kWarn;
    finding.text += Concat(": HALFLIFE_CPU_ISA disables ", NameOf(widest));
    finding.remedy = "unset HALFLIFE_CPU_ISA";
  } else if (widest == InstructionSet::kBaseline) {
    finding.verdict = Verdict::kWarn;
    finding.text += ": the CPU has neither AVX-512 nor AVX2 with FMA, so kernels are slow";
    finding.remedy = "in a virtual machine, pass the host's CPU through, e.g. qemu -cpu host";
  }
  return finding;
}

Finding Cores(size_t allowed, std::optional<double> quota) {
  Finding finding{Verdict::kOk,
                  "cores",
                  Concat(allowed, " usable, cgroup limit ",
                         quota ? Concat(Fixed(*quota, 1), " cores") : std::string("none")),
                  "",
                  {{"usable", static_cast<double>(allowed)}}};
  if (quota) finding.values["cgroup_limit"] = *quota;
  if (quota && *quota + 0.01 < static_cast<double>(allowed)) {
    finding.verdict = Verdict::kWarn;
    finding.text += ": one thread per usable core exceeds the limit and is throttled";
    finding.remedy = Concat("export OMP_NUM_THREADS=", std::max(1, static_cast<int>(*quota)));
  }
  return finding;
}

Finding Threads(double cores) {
  const char* const omp = std::getenv("OMP_NUM_THREADS");
  const int threads = at::get_num_threads();
  Finding finding{
      Verdict::kOk,
      "threads",
      Concat("LibTorch ", threads, ", OMP_NUM_THREADS ", omp == nullptr ? "unset" : omp),
      "",
      {{"libtorch", threads}}};
  if (threads > cores + 0.01) {
    finding.verdict = Verdict::kWarn;
    finding.text += Concat(": more than ", Plural(cores, "core"));
    finding.remedy = Concat("export OMP_NUM_THREADS=", std::max(1, static_cast<int>(cores)));
  }
  return finding;
}

}  // namespace

std::vector<Finding> CheckCpu(const CheckInputs& inputs) {
  const size_t allowed =
      ParseCpuList(ParseField(inputs.Read(inputs.proc / "self/status"), "Cpus_allowed_list"))
          .size();
  if (allowed == 0) {
    return {Instructions(inputs),
            {Verdict::kWarn, "cores", "/proc/self/status does not list the cores of this process",
             "mount /proc"}};
  }
  const std::optional<double> quota = CgroupCores(inputs);
  const double cores = std::min(static_cast<double>(allowed), quota.value_or(1e9));
  return {Instructions(inputs), Cores(allowed, quota), Threads(cores)};
}

// Starts two ranks of `true` to check that mpirun works, and reports where it binds them.
std::vector<Finding> CheckBinding(const CheckInputs& inputs) {
  if (inputs.launcher.launched || FindProgram("mpirun").empty()) return {};
  const CommandOutput output = RunTool(
      ::geteuid() == 0 ? "mpirun --allow-run-as-root -n 2 --oversubscribe --report-bindings true"
                       : "mpirun -n 2 --oversubscribe --report-bindings true");
  if (output.exit_code != 0) {
    return {{Verdict::kFail, "mpirun -n 2",
             Concat("ends with exit code ", output.exit_code, ": ",
                    output.text.substr(0, output.text.find("\n\n"))),
             "mpirun -n 2 --oversubscribe true"}};
  }
  const std::optional<std::string> binding = ParseBinding(output.text);
  if (!binding) return {{Verdict::kOk, "mpirun -n 2", "starts, but does not report its binding"}};
  if (binding->empty())
    return {{Verdict::kOk, "mpirun -n 2", "starts, and does not bind ranks to cores"}};
  return {{Verdict::kOk, "mpirun -n 2",
           Concat("starts, and by default binds rank 0 to ", *binding,
                  "; launch/mpirun/run.sh gives each rank of a full machine its own cores")}};
}

}  // namespace halflife::cli::doctor
