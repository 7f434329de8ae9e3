#include "ckpt/collective.h"

#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "ckpt/damage.h"
#include "core/log.h"
#include "dist/wait_longer.h"

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

// Returns the most important failure with the messages of the failed ranks, or nothing.
std::string FirstFailure(const dist::Communicator& comm, const std::vector<std::string>& outcomes) {
  constexpr int kMaxMessages = 8;
  const std::string* first = nullptr;
  std::string text;
  int num_failed = 0;
  for (int rank = 0; rank < std::ssize(outcomes); ++rank) {
    const std::string& outcome = outcomes[static_cast<size_t>(rank)];
    if (Good(outcome)) continue;
    if (first == nullptr || ((*first)[0] == kDamaged && outcome[0] == kFailed)) first = &outcome;
    if (++num_failed > kMaxMessages) continue;
    text += Concat(text.empty() ? "" : "; ",
                   outcomes.size() == 1 ? "" : Concat("rank ", comm.WorldRank(rank), ": "),
                   Message(outcome));
  }
  if (first == nullptr) return "";
  if (num_failed > kMaxMessages) text += Concat("; and ", num_failed - kMaxMessages, " more");
  return first->substr(0, (*first)[0] == kDamaged ? 1 : 2) + text;
}

}  // namespace

std::string OnRankZero(dist::Communicator& comm, dist::OpTag tag, const ByteAction& action) {
  const std::string outcome =
      dist::BroadcastBytes(comm, comm.rank() == 0 ? Run(action) : std::string(), 0, tag,
                           [](dist::Work& work) { dist::WaitLonger(work, kRankZeroSeconds); });
  if (!Good(outcome)) Throw(outcome, Message(outcome));
  return outcome.substr(1);
}

std::string OnEveryRank(dist::Communicator& comm, dist::OpTag tag, const ByteAction& action,
                        const Judge& judge, const dist::Waiter& wait) {
  std::vector<std::string> outcomes = dist::GatherBytes(comm, Run(action), tag, wait);
  std::string verdict;
  if (comm.rank() == 0) {
    verdict = FirstFailure(comm, outcomes);
    for (std::string& outcome : outcomes) outcome.erase(0, 1);
    if (verdict.empty()) verdict = Run([&] { return judge ? judge(outcomes) : std::string(); });
  }
  verdict = dist::BroadcastBytes(comm, std::move(verdict), 0, tag, wait);
  if (!Good(verdict)) Throw(verdict, Message(verdict));
  return verdict.substr(1);
}

void Arrive(dist::Communicator& comm, dist::OpTag tag, double seconds) {
  dist::Work arrived = comm.Barrier(tag);
  dist::WaitLonger(arrived, seconds);
}

Patience::Patience(dist::Communicator& comm, double timeout_s, std::string what)
    : comm_(comm), timeout_s_(timeout_s), what_(std::move(what)) {}

void Patience::Wait(dist::Work& work) {
  while (!work.Done()) {
    const double waited = stopwatch_.Seconds();
    if (waited > timeout_s_ && comm_.rank() == 0 && !std::exchange(has_logged_, true))
      HL_WARN("ckpt", what_, "; waiting as long again");
    if (waited > 2 * timeout_s_) {
      comm_.Abort(what_);
      HL_FAIL(ExitCode::kTimeout, what_,
              ", nor in the same time after it; nothing was published. If "
              "the file system is slow, use a larger ckpt.timeout_s.");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  work.WaitHost();
}

}  // namespace halflife::ckpt
