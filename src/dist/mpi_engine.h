// The one thread of a process that talks to MPI between its initialisation and its end; only an
// abort of the world calls MPI from elsewhere. Ranks overlap communication with compute because the
// engine keeps polling while the main thread computes. It runs ExchangePlans and does their
// arithmetic. mpi.h is included by .cc files of this area alone.
//
//   MpiEngine engine;                                             // MPI is initialised
//   const auto job = engine.Submit(MpiEngine::kWorld,
//                                  {.plan = plan, .what = "sum of norms", .timeout_s = 180});
//   engine.Wait(*job);
//
// The jobs of one group run one after the other, those of different groups at once. After the first
// failure the engine is dead: it makes no further MPI call, and all pending and later jobs fail.
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
  using GroupId = int;  // of an MPI communicator that the engine owns
  static constexpr GroupId kWorld = 0;
  struct Group {
    GroupId id = kWorld;
    int rank = 0;
    int size = 1;
  };

  MpiEngine();
  ~MpiEngine();  // ends the thread; open jobs are dropped
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  Group world();
  // Collective over `group`, with none of its jobs open. A negative color takes part and gets size
  // 0.
  Group Split(GroupId group, int color, int key, double timeout_s);
  Group SplitByNode(GroupId group, double timeout_s);

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
