// Gives work that can fail on some ranks the same outcome on every rank, a value or an error. No
// rank then waits in a collective for one that has thrown.
//
//   const std::string attempt = OnRankZero(comm, {"ckpt_open", 0}, [&] { return OpenAttempt(); });
//   OnEveryRank(comm, {"ckpt_vote", 0}, [&] { return WriteAndDescribe(); }, Assemble);
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/clock.h"
#include "dist/communicator.h"

namespace halflife::ckpt {

// Rank 0 may delete large folders, which some disks do slowly. A save has as much time.
constexpr double kRankZeroSeconds = 3600;

using ByteAction = std::function<std::string()>;

// Runs `action` on rank 0. Every rank returns its result, or throws its error with the same type
// and exit code. The other ranks wait an hour, and then as long as for any collective.
std::string OnRankZero(dist::Communicator& comm, dist::OpTag tag, const ByteAction& action);

// Makes the result of all ranks from the results of each, by rank.
using Judge = std::function<std::string(const std::vector<std::string>&)>;

// Runs `action` on every rank. If it succeeds on all, runs `judge` on rank 0. Every rank returns
// the result of `judge` (empty without one), or throws one error, which names the failed ranks. An
// I/O error has precedence over damage, because it says nothing about the data. Takes 4 (W - 1)
// messages: the results go up a binary tree and the verdict goes down.
std::string OnEveryRank(dist::Communicator& comm, dist::OpTag tag, const ByteAction& action,
                        const Judge& judge = {}, const dist::Waiter& wait = {});

// Returns when every rank has called it. The deadline of the communicator applies only after
// `seconds`.
void Arrive(dist::Communicator& comm, dist::OpTag tag,
            double seconds = std::numeric_limits<double>::infinity());

// The limits of a wait for ranks that may be slow. The clock starts when it is made. After
// `timeout_s` it logs, once and on rank 0, that it still waits. After twice that time it aborts the
// group and throws Error kTimeout. Both texts contain `what`.
class Patience {
 public:
  Patience(dist::Communicator& comm, double timeout_s, std::string what);
  void Wait(dist::Work& work);

 private:
  dist::Communicator& comm_;
  const double timeout_s_;
  const std::string what_;
  const Stopwatch stopwatch_;
  bool has_logged_ = false;
};

}  // namespace halflife::ckpt
