#include "dist/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "core/clock.h"
#include "core/human.h"
#include "core/log.h"
#include "core/threads.h"
#include "dist/flight_report.h"

namespace halflife::dist {
namespace {

constexpr double kPatienceOfFirstSteps = 5;
constexpr double kForOwnGpu = 4;  // timeouts until an operation must be ready
constexpr double kOfLongestPhase = 10;
constexpr int64_t kJumpUs = 1'000'000;  // Smaller steps of the clock do not matter.

double SecondsSince(int64_t since_us, int64_t now_us) {
  return 1e-6 * static_cast<double>(now_us - since_us);
}

ClockJump::Clocks ReadClocks() {
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return {.steady_us = std::chrono::duration_cast<std::chrono::microseconds>(steady).count(),
          .unix_us = UnixMicroseconds()};
}

CommFailure Timeout(std::string text) {
  return {CommFailure::Kind::kTimeout, Concat("timeout: ", text)};
}

double PhaseLimit(const FlightRecorder::PhaseState& phase, const WatchLimits& limits) {
  if (phase.name == "data") return limits.data_s;
  if (phase.name == "save") return limits.save_s;
  for (const char* const name : {"forward", "backward", "reduce", "update"})
    if (phase.name == name)
      return std::max(2 * limits.timeout_s, kOfLongestPhase * phase.longest_s);
  return std::numeric_limits<double>::infinity();
}

}  // namespace

std::optional<CommFailure> Judge(const WatchSnapshot& snapshot, const WatchLimits& limits) {
  if (snapshot.device.failure) return snapshot.device.failure;
  if (!std::isfinite(limits.timeout_s)) return std::nullopt;
  const int64_t now_us = snapshot.now_us;
  const double factor =
      snapshot.phase.num_steps <= limits.num_first_steps ? kPatienceOfFirstSteps : 1;
  const DeviceWatch::State& device = snapshot.device;
  if (device.poller_us != 0) {
    const double silent_s = SecondsSince(device.poller_us, now_us);
    // The first save allocates pinned memory, during which queries may wait.
    if (silent_s > factor * limits.poller_s && snapshot.phase.name != "save")
      return Timeout(Concat("the GPU's driver has not answered for ", HumanSeconds(silent_s)));
  }
  if (!device.call.empty()) {
    const double waited_s = SecondsSince(device.call_since_us, now_us);
    if (waited_s > factor * device.call_limit_s)
      return Timeout(Concat(device.call, " has not returned for ", HumanSeconds(waited_s)));
  }
  for (const FlightRecorder::DeviceHead& head : snapshot.heads) {
    const bool ready = head.ready_us != 0;
    const double waited_s = SecondsSince(ready ? head.ready_us : head.issued_us, now_us);
    const double limit_s = factor * limits.timeout_s;
    if (ready && waited_s > limit_s && !snapshot.late_rank_has_time)
      return Timeout(Concat(head.text, " has waited ", HumanSeconds(waited_s), " for other ranks"));
    if (!ready && waited_s > kForOwnGpu * limit_s)
      return Timeout(Concat(head.text, " was issued ", HumanSeconds(waited_s),
                            " ago, but this rank's GPU has not come to it"));
  }
  const double in_phase_s = SecondsSince(snapshot.phase.since_us, now_us);
  if (in_phase_s > factor * PhaseLimit(snapshot.phase, limits) && !snapshot.late_rank_has_time)
    return Timeout(Concat("phase ", snapshot.phase.name, " of step ", snapshot.phase.step,
                          " has taken ", HumanSeconds(in_phase_s)));
  return std::nullopt;
}

bool ClockJump::Update(const Clocks& now) {
  const int64_t moved_us = (now.unix_us - since_.unix_us) - (now.steady_us - since_.steady_us);
  if (std::abs(moved_us) <= kJumpUs) return false;
  since_ = now;
  at_us_ = now.unix_us;
  HL_WARN("dist", "the clock of this machine was set ", moved_us > 0 ? "forward" : "back", " by ",
          HumanSeconds(1e-6 * static_cast<double>(std::abs(moved_us))),
          ". The watchdog counts all waits from now. Do not set the clock during a run.");
  return true;
}

void ClockJump::Correct(WatchSnapshot& snapshot) const {
  if (at_us_ == 0) return;
  // Until a step counts as a jump, times may lie in the future by up to twice its size.
  const int64_t latest_us = snapshot.now_us + 2 * kJumpUs;
  const auto correct = [&](int64_t& time_us) {
    if (time_us != 0 && (time_us < at_us_ || time_us > latest_us)) time_us = at_us_;
  };
  correct(snapshot.phase.since_us);
  correct(snapshot.device.call_since_us);
  correct(snapshot.device.poller_us);
  for (FlightRecorder::DeviceHead& head : snapshot.heads) {
    correct(head.issued_us);
    correct(head.ready_us);
  }
}

Watchdog::Watchdog(FlightRecorder& flight, std::shared_ptr<const DeviceWatch> device,
                   WatchLimits limits, OnFailure on_failure)
    : flight_(flight),
      device_(std::move(device)),
      limits_(limits),
      on_failure_(std::move(on_failure)),
      thread_(StartThread([this] { Run(); })) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void Watchdog::Run() {
  const std::chrono::duration<double> interval(limits_.interval_s);
  ClockJump jump(ReadClocks());
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, interval, [this] { return stopping_; })) {
    lock.unlock();
    const std::optional<CommFailure> failure = Look(jump);
    if (failure) return on_failure_(*failure);
    lock.lock();
  }
}

std::optional<CommFailure> Watchdog::Look(ClockJump& jump) {
  WatchSnapshot snapshot = {
      .heads = flight_.DeviceHeads(), .device = device_->Read(), .phase = flight_.Phase()};
  // The clocks are read last, so that no time lies in the future unless the clock was set back.
  const ClockJump::Clocks now = ReadClocks();
  snapshot.now_us = now.unix_us;
  jump.Update(now);
  jump.Correct(snapshot);
  const std::optional<CommFailure> failure = Judge(snapshot, limits_);
  if (!failure || failure->kind != CommFailure::Kind::kTimeout) return failure;
  // Only now it is worth reading the other ranks' records.
  const std::filesystem::path folder = flight_.Folder();
  snapshot.late_rank_has_time =
      !folder.empty() && LateRankHasTime(folder, limits_, snapshot.now_us, jump.at_us());
  return Judge(snapshot, limits_);
}

bool LateRankHasTime(const std::filesystem::path& folder, const WatchLimits& limits, int64_t now_us,
                     int64_t jump_us) noexcept {
  constexpr double kAliveSeconds = 5;
  try {
    const std::vector<FlightRecord> records = ReadFlight(folder);
    for (const FlightFinding& finding : FlightFindings(records, now_us)) {
      if (finding.kind != FlightFinding::Kind::kDiverged) continue;
      const auto late = std::ranges::find(records, finding.rank, &FlightRecord::rank);
      if (late == records.end() || late->process == ProcessState::kStopped ||
          late->process == ProcessState::kGone)
        continue;
      const double limit_s = late->phase == "data"   ? limits.data_s
                             : late->phase == "save" ? limits.save_s
                                                     : 0;
      if (SecondsSince(late->alive_us, now_us) < kAliveSeconds &&
          SecondsSince(std::max(late->phase_since_us, jump_us), now_us) < limit_s)
        return true;
    }
  } catch (const std::exception& error) {
    HL_WARN("dist", "cannot read the flight records: ", error.what());
  }
  return false;
}

}  // namespace halflife::dist
