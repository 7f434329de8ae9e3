// Checks names, network adapters and the batch system.
#include <arpa/inet.h>
#include <netdb.h>

#include <cstdlib>
#include <memory>
#include <sstream>

#include "cli/doctor/checks.h"
#include "cli/doctor/system_files.h"
#include "core/concat.h"
#include "core/host.h"

namespace halflife::cli::doctor {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

Finding DescribePort(const CheckInputs& inputs, const std::string& device, const fs::path& port) {
  const std::string state = FirstLine(inputs.Read(port / "state"));  // "4: ACTIVE"
  const bool active = state.find("ACTIVE") != std::string::npos;
  return {
      active ? Verdict::kOk : Verdict::kWarn, device,
      Concat("port ", port.filename().string(), ": ", FirstLine(inputs.Read(port / "link_layer")),
             ", ", FirstLine(inputs.Read(port / "rate")), ", ", state),
      active ? "" : "run ibstat for details; NCCL and MPI skip inactive ports"};
}

// Parses the plugins of srun: "MPI plugin types are...\n\tpmix\n\tpmi2\nspecific pmix plugin
// versions available: pmix_v4\n" -> "pmix, pmix_v4".
std::string PmixTypes(const std::string& list) {
  std::istringstream words(list);
  std::string types;
  for (std::string word; words >> word;) {
    word = word.substr(0, word.find(','));
    const bool is_type = word.starts_with("pmix_v") || word == "pmix";
    if (is_type && types.find(word + ",") == std::string::npos) types += word + ", ";
  }
  return types.empty() ? "" : types.substr(0, types.size() - 2);
}

}  // namespace

std::vector<Finding> CheckHostName(const CheckInputs&) {
  const std::string host = HostName();
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  if (error != 0) {
    return {{Verdict::kWarn, "hostname",
             Concat(host, " does not resolve (", ::gai_strerror(error),
                    "): ranks on several machines will not find each other"),
             Concat("echo '127.0.1.1 ", host, "' >> /etc/hosts, or its address in the cluster")}};
  }
  std::string addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST] = {};
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
        0) {
      addresses += Concat(addresses.empty() ? "" : ", ", text);
    }
  }
  return {{Verdict::kOk, "hostname", Concat(host, " is ", addresses)}};
}

std::vector<Finding> CheckInfiniBand(const CheckInputs& inputs) {
  std::vector<Finding> findings;
  std::error_code ignored;
  for (const fs::directory_entry& device :
       fs::directory_iterator(inputs.sys / "class/infiniband", ignored)) {
    for (const fs::directory_entry& port :
         fs::directory_iterator(device.path() / "ports", ignored)) {
      findings.push_back(DescribePort(inputs, device.path().filename(), port.path()));
    }
  }
  if (findings.empty()) {
    findings.push_back({Verdict::kOk, "InfiniBand", "none: machines communicate over TCP"});
  }
  return findings;
}

std::vector<Finding> CheckSlurm(const CheckInputs&) {
  const char* const job = std::getenv("SLURM_JOB_ID");
  const std::string inside = job == nullptr ? "not inside a job" : Concat("inside job ", job);
  if (FindProgram("srun").empty()) {
    if (job == nullptr) return {{Verdict::kOk, "Slurm", "not installed"}};
    return {{Verdict::kWarn, "Slurm", inside + ", but srun is not in PATH",
             "add Slurm's commands to PATH"}};
  }
  const CommandOutput list = RunTool("srun --mpi=list");
  if (const std::string types = PmixTypes(list.text); !types.empty()) {
    return {{Verdict::kOk, "Slurm", Concat(inside, "; srun --mpi supports ", types)}};
  }
  return {{Verdict::kWarn, "Slurm",
           inside + "; srun has no PMIx, so it starts every rank as a separate world of one",
           "start ranks with mpirun inside the allocation, or use a Slurm built with PMIx"}};
}

}  // namespace halflife::cli::doctor
