// A rank's identity and communicators. `main` creates it once, or once per thread if a process runs
// several ranks. It is passed by reference and destroyed before MPI_Finalize.
//
//   auto context = RankContext::Create({.timeout_s = 180});
//   context->world().AllReduce(Ref(&loss, 1), ReduceOp::kSum, {"loss", 0}, nullptr).WaitHost();
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/host.h"
#include "core/tensor_ref.h"
#include "core/versions.h"
#include "dist/communicator.h"
#include "dist/device_watch.h"
#include "dist/flight_recorder.h"

namespace halflife::dist {

class RankContext;

struct RankConfig {
  double timeout_s = 180;       // seconds; deadline of one collective
  double init_timeout_s = 600;  // seconds; deadline of the first rendezvous
  // Program and library versions, which must be equal on all ranks (otherwise Error kEnvironment).
  // Empty: not compared.
  std::string build = {};
  // Ends the process, and with it the world, if this rank, its GPU or a peer is stuck: see
  // Watchdog, which calls it on its own thread. Only worlds of several GPUs have a watchdog. Null:
  // none has.
  std::function<void(RankContext& context, const CommFailure& failure)> on_stuck = {};
};

class RankContext {
 public:
  virtual ~RankContext() = default;
  // Reads the launcher's variables (OMPI_COMM_WORLD_SIZE, PMIX_RANK, SLURM_PROCID with
  // SLURM_STEP_ID). Without them, creates a world of one rank without MPI. Throws Error
  // kEnvironment if the variables and MPI disagree, or if versions differ.
  static std::unique_ptr<RankContext> Create(const RankConfig& config);

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  // Returns the rank among the ranks of this process, which run one per thread. Rank 0 of a process
  // writes the process's log and reports its peak memory.
  virtual int rank_in_process() const { return 0; }
  virtual int ranks_in_process() const { return 1; }
  virtual const std::string& host() const = 0;

  // For device tensors: MPI on the CPU, NCCL on CUDA after UseDevice(cuda). With a single rank it
  // uses neither.
  virtual Communicator& world() = 0;
  // For host tensors only: manifests, votes, signals.
  virtual Communicator& control() = 0;
  virtual void UseDevice(Device device) = 0;

  // Throws Error kUsage "ranks disagree about the config", with the names of the differing ranks,
  // unless all ranks pass an equal `config_hash`. Collective. It is separate from Create because
  // the config is known only after the world exists.
  virtual void RequireSameConfig(const std::string& config_hash) = 0;

  // Records what this rank does, to explain why a run hangs or failed.
  virtual FlightRecorder& flight() = 0;

  // Ends the whole world at once with this exit code. Thread-safe; does not return.
  [[noreturn]] virtual void AbortWorld(int exit_code) noexcept = 0;
};

// Returns a rank of a world whose ranks are threads of this process. Such a world runs the trainer
// on many ranks without MPI, for tests and for machines that have no MPI. CPU tensors only.
//
//   RunLocalRanks(4, {.timeout_s = 180}, [&](RankContext& context) { Train(context); });
//
// `comm` is this rank's communicator of a LocalWorld; borrowed.
std::unique_ptr<RankContext> MakeLocalRankContext(Communicator& comm);

// Runs `body` on `size` threads and joins them. The first exception that is a cause ends all ranks
// and is rethrown here.
void RunLocalRanks(int size, const RankConfig& config,
                   const std::function<void(RankContext& context)>& body);

// Returns the context of a process that mpirun or srun started, and initialises MPI. `evidence`
// describes the environment; MPI must agree with it.
std::unique_ptr<RankContext> MakeMpiRankContext(const RankConfig& config,
                                                const LauncherEvidence& evidence);

// Initialises MPI, runs `body` on `count` threads, each of which is a rank of the world, and joins
// them. The first exception that is a cause ends all ranks of the process and is rethrown here.
void RunMpiRanks(int count, const RankConfig& config, const LauncherEvidence& evidence,
                 const std::function<void(RankContext& context)>& body);

// Throws Error kUsage for a CUDA device: ranks that are threads of one process cannot have a GPU
// each.
void RequireCpuOfThreads(Device device);

// Returns the most frequent value. Among equally frequent values, it is that of the lowest rank.
std::string UsualValue(const std::vector<std::string>& values);
// Returns the ranks whose value differs from the most frequent value.
std::vector<int> OddRanks(const std::vector<std::string>& values);

// Throws Error kUsage "ranks disagree about the config", naming the differing ranks and both
// hashes.
void CheckSameConfig(Communicator& control, const std::string& config_hash);

// Returns NCCL over the ranks of `control`, or a Self communicator for a single rank. `watch`
// receives what the threads of NCCL report for a Watchdog. Throws Error kEnvironment in a build
// without CUDA.
std::unique_ptr<Communicator> MakeDeviceWorld(Communicator& control, Device device,
                                              const RankConfig& config,
                                              std::shared_ptr<DeviceWatch> watch);

// Returns the versions of the libraries that move tensors between ranks: "MPI library" and, if
// compiled with CUDA, "CUDA runtime", "CUDA driver" and "NCCL". May be called before MPI is
// initialised, or without it.
std::vector<LibraryVersion> CommunicationLibraries();

}  // namespace halflife::dist
