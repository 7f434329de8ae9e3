// Inside of LocalWorld: the rendezvous table that the rank threads share. One mutex guards
// everything; an operation's data moves under it, so a rank that unwinds can withdraw its buffers
// safely.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dist/local_communicator.h"
#include "dist/request.h"

namespace halflife::dist::local {

using Clock = std::chrono::steady_clock;

// Thrown through a rank's stack by LocalFault::kDisappear; Run swallows it.
struct Vanished {};

// One operation of a group, from the first rank's arrival until its data moved.
struct Slot {
  std::vector<std::optional<Request>> requests;  // by rank of the group
  int arrived = 0;
  bool complete = false;
  Clock::time_point due;  // not before; set when the last rank arrives
};

struct Group {
  uint64_t id = 0;
  std::string name;
  std::vector<int> world_ranks;
  std::map<int64_t, std::shared_ptr<Slot>> slots;  // by seq; incomplete ones only
  Clock::time_point last_due;                      // operations complete in issue order
};

class State {
 public:
  State(int size, const LocalOptions& options);

  const std::shared_ptr<Group>& world() const { return world_; }
  // The group made by the `seq`-th operation of `parent` for one color: equal for all that ask.
  std::shared_ptr<Group> FindGroup(const Group& parent, int64_t seq, int color, std::string name,
                                   std::vector<int> world_ranks);

  std::shared_ptr<Slot> Arrive(Group& group, int rank, int64_t seq, Request request);
  bool Done(Group& group, Slot& slot);
  void Wait(Group& group, Slot& slot, int rank, int64_t seq, Clock::time_point deadline);

  // The first cause counts. `kind` is what the other ranks throw.
  void Abort(CommFailure::Kind kind, const std::string& cause);
  bool aborted();
  void HangUntilAbort();
  void Leave(int world_rank);  // this rank's thread has ended
  // Operations that wait for ranks which have ended; empty in a sound program.
  std::string LeftOver();

  const LocalOptions& options() const { return options_; }
  // In [0, 1), a pure function of the schedule's seed and the arguments.
  double Chance(uint64_t group, int64_t seq, int rank) const;
  double DelaySeconds(const Group& group, int64_t seq, int rank) const;
  // True once, for the nth matching call.
  std::optional<LocalFault::Kind> TakeFault(int world_rank, const std::string& what);

 private:
  void ThrowIfAborted(const Group& group, const Request& request, int64_t seq);
  [[noreturn]] void Fail(CommFailure::Kind kind, const std::string& text);
  void RunDue(Group& group);
  void CheckPresence(const Group& group, const Slot& slot, int rank, int64_t seq,
                     Clock::time_point deadline);

  const LocalOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Group> world_;
  std::map<std::tuple<uint64_t, int64_t, int>, std::shared_ptr<Group>> groups_;
  std::vector<bool> gone_;  // by world rank
  std::optional<CommFailure> abort_;
  std::vector<int> fault_hits_;
};

}  // namespace halflife::dist::local
