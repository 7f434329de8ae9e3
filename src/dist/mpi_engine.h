// The one thread of a process that calls MPI between its initialisation and its end; only an abort
// of the world calls MPI from another thread. The engine keeps polling while the main thread
// computes, so that communication overlaps with compute. It runs ExchangePlans and does their
// arithmetic. Only .cc files of this area include mpi.h.
//
// A process may run several ranks, which share its engine. They are neighbours in the world, and
// each has its own place in every group. The jobs of one rank's group run one after the other; the
// jobs of different groups run concurrently. After the first failure the engine is dead: it makes
// no further MPI call, and all pending and later jobs fail.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/exchange_plan.h"

namespace halflife::dist {

struct MpiJobSpec {
  ExchangePlan plan;
  uint32_t tag = 0;  // 14 bits; different values on two ranks mean that the ranks are out of step
  std::string what;  // for messages
  double timeout_s = 0;
};

class MpiJob;

class MpiEngine {
 public:
  using GroupId = int;  // identifies one rank's place in a group
  struct Group {
    GroupId id = 0;
    int rank = 0;
    int size = 1;
    std::vector<int> world_ranks = {};  // by rank of the group
  };
  // The position of this process's ranks among the ranks of its host.
  struct Node {
    int first_rank = 0;
    int size = 1;
  };

  // Collective over processes; call it on the thread that initialised MPI. `num_ranks` is the
  // number of ranks of this process; other processes may have different numbers.
  explicit MpiEngine(int num_ranks);
  ~MpiEngine();  // ends the thread and drops open jobs
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  Group world(int rank_in_process);
  int num_processes() const;
  Node node() const;
  // Collective over the world. `group` must contain all ranks of the world and have no open jobs. A
  // rank with a negative color takes part and receives a group of size 0.
  Group Split(GroupId group, int color, int key, double timeout_s);

  std::shared_ptr<MpiJob> Submit(GroupId group, MpiJobSpec spec);
  bool Done(const MpiJob& job);
  // Throws CommError; kTimeout names the ranks from which nothing was received.
  void Wait(MpiJob& job);
  // For destructors. Waits at most `grace_s` seconds, then kills the engine so that it releases the
  // job's buffers.
  void Abandon(MpiJob& job, double grace_s) noexcept;

  void Abort(const std::string& cause) noexcept;
  bool healthy();

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Ranks that are processes under mpirun or srun; CPU tensors only. All operations run on the
// process's MpiEngine: they progress while the caller computes, and sum pairwise over ranks.
//
// Split is collective and waits until this process has no operation in flight. A desync (ranks that
// issue different operations) appears as a timeout, because messages of different operations do not
// match.
struct MpiCommunicatorOptions {
  double timeout_s = 180;  // deadline of one operation, counted from its issue
  ExchangeLimits limits = {};
};

// `engine` must outlive the communicator and all its operations.
std::unique_ptr<Communicator> MakeMpiCommunicator(MpiEngine& engine, MpiEngine::Group group,
                                                  std::string name,
                                                  const MpiCommunicatorOptions& options);

}  // namespace halflife::dist
