// Internal to LocalWorld: the rendezvous table that all rank threads share. One mutex protects
// everything. The data of an operation also moves under this mutex, so a rank that unwinds can
// withdraw its buffers safely.
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

// LocalFault::kDisappear throws this through a rank's stack; Run catches it.
struct Vanished {};

// One operation of a group, from the arrival of the first rank until its data has moved.
struct Slot {
  std::vector<std::optional<Request>> requests;  // by rank of the group
  int arrived = 0;
  bool complete = false;
  Clock::time_point due;  // earliest completion; set when the last rank arrives
};

struct Group {
  uint64_t id = 0;
  std::string name;
  std::vector<int> world_ranks;
  std::map<int64_t, std::shared_ptr<Slot>> slots;  // by seq; only incomplete operations
  Clock::time_point last_due;  // latest due time so far, because operations complete in issue order
};

class State {
 public:
  State(int size, const LocalOptions& options);

  const std::shared_ptr<Group>& world() const { return world_; }
  // Returns the group that the `seq`-th operation of `parent` creates for one color. All ranks of
  // the color receive the same object.
  std::shared_ptr<Group> FindGroup(const Group& parent, int64_t seq, int color, std::string name,
                                   std::vector<int> world_ranks);

  std::shared_ptr<Slot> Arrive(Group& group, int rank, int64_t seq, Request request);
  bool Done(Group& group, Slot& slot);
  void Wait(Group& group, Slot& slot, int rank, int64_t seq, Clock::time_point deadline);

  // Only the first cause is kept. `kind` is the kind of error that the other ranks throw.
  void Abort(CommFailure::Kind kind, const std::string& cause);
  bool aborted();
  void HangUntilAbort();
  void Leave(int world_rank);  // the thread of this rank has ended
  // Describes an operation that waits for ranks which have ended; empty in a correct program.
  std::string LeftOver();

  const LocalOptions& options() const { return options_; }
  // Returns a number in [0, 1), a pure function of the schedule's seed and the arguments.
  double Chance(uint64_t group, int64_t seq, int rank) const;
  double DelaySeconds(const Group& group, int64_t seq, int rank) const;
  // Returns the kind of a fault once, at its nth matching call.
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
