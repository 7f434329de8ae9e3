// The one thread of a process that talks to MPI between its initialisation and its end; only an
// abort of the world calls MPI from elsewhere. Ranks overlap communication with compute because the
// engine keeps polling while the main thread computes. It runs ExchangePlans and does their
// arithmetic. mpi.h is included by .cc files of this area alone.
//
//   MpiEngine engine(1);                                          // MPI is initialised
//   const auto job = engine.Submit(engine.world(0).id,
//                                  {.plan = plan, .what = "sum of norms", .timeout_s = 180});
//   engine.Wait(*job);
//
// A process may be several ranks, which share its engine: neighbours in the world, each with its
// own place in every group. The jobs of one rank's group run one after the other, those of
// different groups at once. After the first failure the engine is dead: it makes no further MPI
// call, and all pending and later jobs fail.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dist/exchange_plan.h"

namespace halflife::dist {

struct MpiJobSpec {
  ExchangePlan plan;
  uint32_t tag = 0;  // 14 bits; unequal on two ranks means that they are out of step
  std::string what;  // for messages
  double timeout_s = 0;
};

class MpiJob;

class MpiEngine {
 public:
  using GroupId = int;  // of one rank's place in a group
  struct Group {
    GroupId id = 0;
    int rank = 0;
    int size = 1;
  };
  // Where the ranks of this process lie among those of its host.
  struct Node {
    int first_rank = 0;
    int size = 1;
  };

  // Collective over processes, on the thread that has initialised MPI. `num_ranks`: what this
  // process is; others may be more or fewer.
  explicit MpiEngine(int num_ranks);
  ~MpiEngine();  // ends the thread; open jobs are dropped
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  Group world(int rank_in_process);
  int num_processes() const;
  Node node() const;
  // Collective over the world, whose ranks are all in `group`, with none of their jobs open. A
  // negative color takes part and gets size 0.
  Group Split(GroupId group, int color, int key, double timeout_s);

  std::shared_ptr<MpiJob> Submit(GroupId group, MpiJobSpec spec);
  bool Done(const MpiJob& job);
  void Wait(MpiJob& job);  // throws CommError; kTimeout names the ranks that nothing came from
  // For destructors: waits at most `grace_s`, then kills the engine so that it lets go of the job's
  // buffers.
  void Abandon(MpiJob& job, double grace_s) noexcept;

  void Abort(const std::string& cause) noexcept;
  bool healthy();

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace halflife::dist
