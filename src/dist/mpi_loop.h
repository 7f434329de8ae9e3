// Internal to the mpi_*.cc files, which include <mpi.h> first: the check of MPI's results, the jobs
// of MpiEngine and the loop that its thread runs.
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

#include "core/concat.h"
#include "dist/communicator.h"
#include "dist/mpi_engine.h"
#include "dist/request.h"

namespace halflife::dist {

inline std::string MpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

}  // namespace halflife::dist

// HL_MPI(MPI_Isend(...), "to rank ", peer) throws CommError kLibrary with MPI's error text.
// Communicators must use MPI_ERRORS_RETURN.
#define HL_MPI(call, ...)                                                                      \
  do {                                                                                         \
    const int hl_mpi_code = (call);                                                            \
    if (hl_mpi_code != MPI_SUCCESS) [[unlikely]] {                                             \
      throw ::halflife::dist::CommError(                                                       \
          {::halflife::dist::CommFailure::Kind::kLibrary,                                      \
           ::halflife::Concat(#call, ": ",                                                     \
                              ::halflife::dist::MpiErrorText(hl_mpi_code) __VA_OPT__(, ": ", ) \
                                  __VA_ARGS__)});                                              \
    }                                                                                          \
  } while (false)

namespace halflife::dist {

// Shared between the caller and the engine thread. The loop's mutex protects all members except
// `state`.
class MpiJob : public std::enable_shared_from_this<MpiJob> {
 public:
  enum class State { kPending, kDone, kFailed };

  MpiEngine::GroupId group = 0;
  MpiJobSpec spec;
  std::optional<SplitPlace> split;  // used instead of a plan: this rank's place in a new group
  MpiEngine::Group made;            // the new group
  std::chrono::steady_clock::time_point deadline;
  std::atomic<State> state{State::kPending};
  CommFailure failure;
};

namespace mpi {

// The MPI communicators of one group. Each contains all processes, and there is one for each pair
// of ranks that two processes may run, because MPI addresses only processes. They are never freed:
// a run creates few of them.
class Channels {
 public:
  // Copies `processes`, for at most `num_ranks` ranks per process. Collective.
  Channels(MPI_Comm processes, int num_ranks);
  MPI_Comm Between(int from_rank_in_process, int to_rank_in_process) const {
    return comms_[static_cast<size_t>(from_rank_in_process * num_ranks_ + to_rank_in_process)];
  }

 private:
  int num_ranks_;
  std::vector<MPI_Comm> comms_;  // [from, to]
};

// The location of a rank of the world.
struct Place {
  int process = 0;
  int rank_in_process = 0;
};

// Two chains of a job are in flight at once: one segment travels while the other is summed. Each
// lane has its own message tag and runs its chains in order. Messages between two ranks therefore
// match by MPI's ordering rule.
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
  std::vector<int> world_ranks;  // by rank of the group; empty if this rank is not a member
  int rank_in_process = 0;
  std::deque<std::shared_ptr<MpiJob>> waiting;
  std::unique_ptr<ActiveJob> active;
};

}  // namespace mpi

class MpiEngine::Loop {
 public:
  explicit Loop(int num_ranks);
  // Ends the thread. Returns false if it is stuck in a blocking MPI call; then no member may be
  // freed.
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
  // Called by the threads of ranks.
  void FindPlaces(int num_ranks);
  void FindNode(int num_ranks);
  bool AwaitUntil(std::unique_lock<std::mutex>& lock, const MpiJob& job,
                  std::chrono::steady_clock::time_point when);

  // Called by the engine thread.
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

  // Set by the constructor and then only read. No messages travel in processes_.
  MPI_Comm processes_;
  int num_processes_ = 1;
  std::vector<mpi::Place> places_;  // by rank of the world
  int max_ranks_ = 1;               // largest number of ranks of one process
  Node node_;

  // Used only by the engine thread, without a lock. groups_ grows under mutex_, so that Describe
  // may read it. Its first entries are the world group of each rank of this process.
  std::vector<std::unique_ptr<mpi::GroupState>> groups_;
  std::vector<MPI_Request> requests_;
  std::vector<mpi::OpenMessage> messages_;  // parallel to requests_
  std::vector<int> indices_;                // result of one poll
  std::vector<MPI_Status> statuses_;
  // The last time at which a message was started or completed.
  std::chrono::steady_clock::time_point moved_;
  // Requests for new groups, by rank in the process.
  std::vector<std::deque<std::shared_ptr<MpiJob>>> asked_;

  std::mutex mutex_;
  std::condition_variable submitted_;  // wakes the engine
  std::condition_variable finished_;   // wakes waiters
  std::deque<std::shared_ptr<MpiJob>> submissions_;
  std::optional<CommFailure> dead_;       // why the engine no longer calls MPI
  std::optional<CommFailure> kill_;       // a request of another thread to stop
  std::shared_ptr<MpiJob> kill_culprit_;  // the job that timed out; null for other causes
  int num_waiting_ = 0;                   // callers that block until a job has finished
  bool begins_to_wait_ = false;           // a caller began to wait since the engine last looked
  bool stop_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace halflife::dist
