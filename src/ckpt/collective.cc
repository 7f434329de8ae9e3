#include "ckpt/collective.h"

#include <chrono>
#include <new>
#include <thread>

#include "ckpt/damage.h"
#include "core/clock.h"

namespace halflife::ckpt {
namespace {

// The first byte of an outcome. After kFailed comes the byte of the exit code. After kDamaged, and
// after this code, comes the message.
constexpr char kGood = 'g', kDamaged = 'd', kFailed = 'f';

std::string Run(const ByteAction& action) {
  try {
    return kGood + action();
  } catch (const DamageError& error) {
    return std::string(1, kDamaged) + error.message();
  } catch (const Error& error) {
    const std::string text = error.code() == ExitCode::kInternal ? error.what() : error.message();
    return std::string{kFailed, static_cast<char>(error.code())} + text;
  } catch (const std::bad_alloc&) {
    return std::string{kFailed, static_cast<char>(ExitCode::kEnvironment)} + "out of memory";
  } catch (const std::exception& error) {
    return std::string{kFailed, static_cast<char>(ExitCode::kInternal)} + error.what();
  }
}

bool Good(const std::string& outcome) { return !outcome.empty() && outcome[0] == kGood; }

std::string Message(const std::string& outcome) {
  return outcome.substr(outcome[0] == kDamaged ? 1 : 2);
}

[[noreturn]] void Throw(const std::string& outcome, const std::string& message) {
  if (outcome[0] == kDamaged) throw DamageError(message);
  throw Error(static_cast<ExitCode>(static_cast<unsigned char>(outcome[1])), "ckpt", message);
}

// Throws the most important failure, with the messages of every failed rank.
void ThrowFirstFailure(const std::vector<std::string>& outcomes) {
  const std::string* first = nullptr;
  std::string text;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string& outcome = outcomes[rank];
    if (Good(outcome)) continue;
    if (first == nullptr || ((*first)[0] == kDamaged && outcome[0] == kFailed)) first = &outcome;
    text += Concat(text.empty() ? "" : "; ",
                   outcomes.size() == 1 ? "" : Concat("rank ", rank, ": "), Message(outcome));
  }
  if (first != nullptr) Throw(*first, text);
}

}  // namespace

std::string OnRankZero(dist::Communicator& comm, dist::OpTag tag, const ByteAction& action) {
  const std::string outcome =
      dist::BroadcastBytes(comm, comm.rank() == 0 ? Run(action) : std::string(), 0, tag);
  if (!Good(outcome)) Throw(outcome, Message(outcome));
  return outcome.substr(1);
}

std::vector<std::string> OnEveryRank(dist::Communicator& comm, dist::OpTag tag,
                                     const ByteAction& action) {
  std::vector<std::string> outcomes = dist::AllGatherBytes(comm, Run(action), tag);
  ThrowFirstFailure(outcomes);
  for (std::string& outcome : outcomes) outcome.erase(0, 1);
  return outcomes;
}

void ArriveWithin(dist::Communicator& comm, double timeout_s, dist::OpTag tag) {
  const Stopwatch stopwatch;
  dist::Work arrived = comm.Barrier(tag);
  while (!arrived.Done()) {
    if (stopwatch.Seconds() > timeout_s) {
      const std::string cause =
          Concat("not all ranks had written their shard within ", timeout_s, " s (ckpt.timeout_s)");
      comm.Abort(cause);
      HL_FAIL(ExitCode::kTimeout, cause, "; nothing was published");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  arrived.WaitHost();
}

}  // namespace halflife::ckpt
