// Gives work that can fail on some ranks the same outcome on every rank, a value or an error. No
// rank then waits in a collective for one that has thrown.
//
//   const std::string attempt = OnRankZero(comm, {"ckpt_open", 0}, [&] { return OpenAttempt(); });
//   const auto parts = OnEveryRank(comm, {"ckpt_vote", 0}, [&] { return WriteAndDescribe(); });
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace halflife::ckpt {

using ByteAction = std::function<std::string()>;

// Runs `action` on rank 0. Every rank returns its result, or throws its error with the same type
// and exit code.
std::string OnRankZero(dist::Communicator& comm, dist::OpTag tag, const ByteAction& action);

// Runs `action` on every rank. Every rank returns all results by rank, or throws one error that
// names the failed ranks. An I/O error has precedence over damage, because it says nothing about
// the data.
std::vector<std::string> OnEveryRank(dist::Communicator& comm, dist::OpTag tag,
                                     const ByteAction& action);

// Returns when every rank has called it. After `timeout_s`, aborts the group and throws Error
// kTimeout.
void ArriveWithin(dist::Communicator& comm, double timeout_s, dist::OpTag tag);

}  // namespace halflife::ckpt
