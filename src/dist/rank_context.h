// Who a rank is in the world. Built once by `main`, or once a thread where a process is several
// ranks; handed down by reference, destroyed before MPI_Finalize.
//
//   auto context = RankContext::Create({.timeout_s = 180});
//   context->world().AllReduce(Ref(&loss, 1), ReduceOp::kSum, {"loss", 0}, nullptr).WaitHost();
#pragma once

#include <memory>
#include <string>

#include "core/launcher.h"
#include "core/tensor_ref.h"
#include "dist/communicator.h"
#include "dist/flight_recorder.h"

namespace halflife::dist {

struct RankConfig {
  double timeout_s = 180;       // deadline of one collective
  double init_timeout_s = 600;  // of the first rendezvous
  // Program and library versions: equal on all ranks, else Error kEnvironment. Empty: not compared.
  std::string build = {};
};

class RankContext {
 public:
  virtual ~RankContext() = default;
  // Reads the launcher's evidence (OMPI_COMM_WORLD_SIZE, PMIX_RANK, SLURM_PROCID with
  // SLURM_STEP_ID). With none, a world of one without MPI. Throws Error kEnvironment where the
  // evidence and MPI disagree, or a version differs.
  static std::unique_ptr<RankContext> Create(const RankConfig& config);

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  // Among the ranks that this process is, one a thread. The first speaks for the process: its log,
  // its peak of memory.
  virtual int rank_in_process() const { return 0; }
  virtual int ranks_in_process() const { return 1; }
  virtual const std::string& host() const = 0;

  // Device tensors: MPI on the CPU, NCCL on CUDA once UseDevice(cuda) was called; of one rank
  // neither.
  virtual Communicator& world() = 0;
  // Host tensors only: manifests, votes, signals.
  virtual Communicator& control() = 0;
  virtual void UseDevice(Device device) = 0;

  // All ranks must call it with an equal `config_hash`; throws Error kUsage "ranks disagree about
  // the config" naming the odd ranks otherwise. (Separate from Create: the config is only known
  // after the world exists.)
  virtual void RequireSameConfig(const std::string& config_hash) = 0;

  // What this rank does, for people who ask why a run hangs or failed.
  virtual FlightRecorder& flight() = 0;

  // Ends the whole world with this exit code, at once, from any thread. Does not return.
  [[noreturn]] virtual void AbortWorld(int exit_code) noexcept = 0;
};

}  // namespace halflife::dist
