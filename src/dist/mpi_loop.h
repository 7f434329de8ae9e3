// Inside of MpiEngine: the jobs, and the loop that its thread runs. For mpi_*.cc files, after their
// own <mpi.h>.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/mpi_check.h"
#include "dist/mpi_engine.h"
#include "dist/split_members.h"

namespace halflife::dist {

// Shared between the caller and the engine thread; everything but `state` is guarded by the loop's
// mutex.
class MpiJob : public std::enable_shared_from_this<MpiJob> {
 public:
  enum class State { kPending, kDone, kFailed };

  MpiEngine::GroupId group = 0;
  MpiJobSpec spec;
  std::optional<SplitPlace> split;  // instead of a plan: this rank's place in a group to come
  MpiEngine::Group made;            // that group
  std::chrono::steady_clock::time_point deadline;
  std::atomic<State> state{State::kPending};
  CommFailure failure;
};

namespace mpi {

// What one group's messages travel in: communicators of all processes, one for each pair of ranks
// that two processes may be, as MPI addresses processes alone. Never freed: a run has few.
class Channels {
 public:
  // Copies of `processes`, for `num_ranks` of each at most. Collective.
  Channels(MPI_Comm processes, int num_ranks);
  MPI_Comm Between(int from_rank_in_process, int to_rank_in_process) const {
    return comms_[static_cast<size_t>(from_rank_in_process * num_ranks_ + to_rank_in_process)];
  }

 private:
  int num_ranks_;
  std::vector<MPI_Comm> comms_;  // [from, to]
};

// Where a rank of the world is.
struct Place {
  int process = 0;
  int rank_in_process = 0;
};

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

// One rank's place in a group.
struct GroupState {
  std::shared_ptr<const Channels> channels;
  int rank = 0;
  std::vector<int> world_ranks;  // by rank of the group; empty: this rank is in none
  int rank_in_process = 0;
  std::deque<std::shared_ptr<MpiJob>> waiting;
  std::unique_ptr<ActiveJob> active;
};

}  // namespace mpi

class MpiEngine::Loop {
 public:
  explicit Loop(int num_ranks);
  // Ends the thread. False when it is stuck in a blocking MPI call: then nothing here may be freed.
  bool Stop();

  Group Describe(GroupId id);
  int num_processes() const { return num_processes_; }
  Node node() const { return node_; }
  Group Split(GroupId parent, int color, int key, double timeout_s);
  std::shared_ptr<MpiJob> Submit(GroupId group, MpiJobSpec spec,
                                 std::optional<SplitPlace> split = {});
  void Wait(MpiJob& job);
  void Abandon(MpiJob& job, double grace_s) noexcept;
  void Abort(const std::string& cause) noexcept;
  bool healthy();

 private:
  // Caller's side.
  void FindPlaces(int num_ranks);
  void FindNode(int num_ranks);
  bool AwaitUntil(std::unique_lock<std::mutex>& lock, const MpiJob& job,
                  std::chrono::steady_clock::time_point when);

  // Engine thread.
  void Run();
  bool TakeSubmissions(int idle_polls);
  std::chrono::nanoseconds PollInterval() const;
  bool HasWork() const;
  void StartJobs(mpi::GroupState& group);
  void FinishIfThrough(mpi::GroupState& group);
  bool AllAskForAGroup() const;
  void MakeGroup();
  std::vector<SplitPlace> GatherSplits() const;
  void Advance(mpi::GroupState& group, mpi::ActiveJob& job, int lane);
  void Post(mpi::GroupState& group, mpi::ActiveJob& job, int lane);
  bool Poll();
  void Finish(MpiJob& job, MpiJob::State state, CommFailure failure = {});
  void Die(CommFailure failure, const std::shared_ptr<MpiJob>& culprit);
  void ForgiveWhatIsDone();
  int WorldRank(const mpi::OpenMessage& message) const;
  std::string MissingPeers(const MpiJob& job) const;

  // Of the construction; read by all. No message travels in processes_.
  MPI_Comm processes_;
  int num_processes_ = 1;
  std::vector<mpi::Place> places_;  // by rank of the world
  int most_ranks_ = 1;              // of one process
  Node node_;

  // The engine thread's own; no lock. groups_ grows under mutex_, so that Describe may look. First
  // come the world's, one a rank of this process.
  std::vector<std::unique_ptr<mpi::GroupState>> groups_;
  std::vector<MPI_Request> requests_;
  std::vector<mpi::OpenMessage> messages_;  // parallel to requests_
  std::vector<int> indices_;                // of one poll
  std::vector<MPI_Status> statuses_;
  // When a message was last begun or found to be through.
  std::chrono::steady_clock::time_point moved_;
  std::vector<std::deque<std::shared_ptr<MpiJob>>> asked_;  // for groups, by rank in the process

  std::mutex mutex_;
  std::condition_variable submitted_;  // wakes the engine
  std::condition_variable finished_;   // wakes waiters
  std::deque<std::shared_ptr<MpiJob>> submissions_;
  std::optional<CommFailure> dead_;       // why the engine makes no MPI call any more
  std::optional<CommFailure> kill_;       // asked for by another thread
  std::shared_ptr<MpiJob> kill_culprit_;  // that waited too long; none: another cause
  int num_waiting_ = 0;                   // callers that block until a job is through
  bool begins_to_wait_ = false;           // one of them, since the engine last looked
  bool stop_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace halflife::dist
