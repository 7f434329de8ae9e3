// Inside of MpiEngine: the jobs, and the loop that its thread runs. For mpi_*.cc files, after their
// own <mpi.h>.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/mpi_check.h"
#include "dist/mpi_engine.h"

namespace halflife::dist {

// Shared between the caller and the engine thread; everything but `state` is guarded by the loop's
// mutex.
class MpiJob {
 public:
  enum class State { kPending, kDone, kFailed };

  MpiEngine::GroupId group = MpiEngine::kWorld;
  MpiJobSpec spec;
  std::function<void()> call;  // instead of a plan: a blocking MPI call, run while no job is active
  std::chrono::steady_clock::time_point deadline;
  std::atomic<State> state{State::kPending};
  CommFailure failure;
};

namespace mpi {

// Two chains of a job are in flight at once: one segment travels while the other is summed. Each
// lane has its own message tag and runs its chains in order, so messages between two ranks match by
// MPI's own ordering rule.
constexpr int kLanes = 2;

struct Lane {
  bool active = false;
  int64_t chain = 0;
  size_t round = 0;
  Chain rounds;
  int open_messages = 0;
};

struct ActiveJob {
  std::shared_ptr<MpiJob> job;
  Lane lanes[kLanes];
  bool finished() const {
    return std::none_of(lanes, lanes + kLanes, [](const Lane& lane) { return lane.active; });
  }
};

struct OpenMessage {
  ActiveJob* job;
  int lane;
  int peer;
  bool receive;
};

struct GroupState {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 0;
  std::vector<int> world_ranks;  // by rank of the group
  std::deque<std::shared_ptr<MpiJob>> waiting;
  std::unique_ptr<ActiveJob> active;
};

}  // namespace mpi

class MpiEngine::Loop {
 public:
  Loop();
  // Ends the thread. False when it is stuck in a blocking MPI call: then nothing here may be freed.
  bool Stop();

  Group world() { return Describe(kWorld); }
  Group AddGroup(GroupId parent, double timeout_s, std::function<MPI_Comm(MPI_Comm)> split);
  std::shared_ptr<MpiJob> Submit(GroupId group, MpiJobSpec spec, std::function<void()> call);
  void Wait(MpiJob& job);
  void Abandon(MpiJob& job, double grace_s) noexcept;
  void Abort(const std::string& cause) noexcept;
  bool healthy();

 private:
  // Caller's side.
  Group Describe(GroupId id);
  bool AwaitUntil(std::unique_lock<std::mutex>& lock, const MpiJob& job,
                  std::chrono::steady_clock::time_point when);

  // Engine thread.
  void Run();
  bool TakeSubmissions(int idle_polls);
  bool HasWork() const;
  void StartJobs(mpi::GroupState& group);
  void FinishIfThrough(mpi::GroupState& group);
  void RunCalls();
  void Advance(mpi::GroupState& group, mpi::ActiveJob& job, int lane);
  void Post(mpi::GroupState& group, mpi::ActiveJob& job, int lane);
  bool Poll();
  void Finish(MpiJob& job, MpiJob::State state, CommFailure failure = {});
  void Die(CommFailure failure, MpiJob* culprit);
  int WorldRank(const mpi::OpenMessage& message) const;
  std::string MissingPeers(const MpiJob& job) const;

  // The engine thread's own; no lock. groups_ grows under mutex_, so that Describe may look.
  std::vector<std::unique_ptr<mpi::GroupState>> groups_;
  std::vector<MPI_Request> requests_;
  std::vector<mpi::OpenMessage> messages_;  // parallel to requests_
  std::vector<int> indices_;                // of one poll
  std::vector<MPI_Status> statuses_;
  std::deque<std::shared_ptr<MpiJob>> calls_;

  std::mutex mutex_;
  std::condition_variable submitted_;  // wakes the engine
  std::condition_variable finished_;   // wakes waiters
  std::deque<std::shared_ptr<MpiJob>> submissions_;
  std::optional<CommFailure> dead_;  // why the engine makes no MPI call any more
  std::optional<CommFailure> kill_;  // asked for by another thread
  MpiJob* kill_culprit_ = nullptr;   // its waiter outlives the request
  bool stop_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace halflife::dist
