#include "train/record/run_timing.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ckpt/collective.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "core/log.h"

namespace halflife::train {

std::optional<ComparedTimes> RankTimes::Add(double busy_seconds) {
  if (control_.size() == 1) return std::nullopt;
  sum_s_ += busy_seconds;
  if (++count_ < kEvery) return std::nullopt;
  double own = std::exchange(sum_s_, 0) / std::exchange(count_, 0);
  std::vector<double> all(control_.size());
  control_
      .AllGather(Ref(&own, 1), Ref(all.data(), static_cast<int64_t>(all.size())), {"rank_times", 0},
                 nullptr)
      .WaitHost();
  const auto slowest = std::max_element(all.begin(), all.end());
  ComparedTimes compared = {.max_s = *slowest, .slowest = static_cast<int>(slowest - all.begin())};
  std::sort(all.begin(), all.end());
  compared.min_s = all.front();
  compared.median_s = all[(all.size() - 1) / 2];
  const bool slow = compared.max_s > kSlow * compared.median_s;
  const bool again = slow && compared.slowest == last_slow_;
  if (!again) {
    times_in_a_row_ = 0;
    waited_s_ = 0;
    warn_at_s_ = kWaitedSeconds;
  }
  if (slow) {
    ++times_in_a_row_;
    waited_s_ += kEvery * (compared.max_s - compared.median_s);
  }
  last_slow_ = slow ? compared.slowest : -1;
  compared.times_in_a_row = times_in_a_row_;
  compared.waited_s = waited_s_;
  compared.worth_a_warning = times_in_a_row_ >= kWorthAWarning && waited_s_ >= warn_at_s_;
  while (compared.worth_a_warning && warn_at_s_ <= waited_s_) warn_at_s_ *= 2;
  return compared;
}

namespace {

// Returns the phases in the order of a step.
std::vector<std::string> InOrder(const HostWaitReport::Phases& phases) {
  static constexpr std::array kOrder = {"data", "forward", "backward", "reduce", "update"};
  std::vector<std::string> names;
  for (const char* phase : kOrder)
    if (phases.contains(phase)) names.emplace_back(phase);
  for (const auto& [phase, counts] : phases)
    if (std::ranges::find(kOrder, phase) == kOrder.end()) names.push_back(phase);
  return names;
}

}  // namespace

void HostWaitReport::Add(const Phases& step) {
  ++num_steps_;
  for (const auto& [phase, counts] : step) {
    ops::HostCounts& sum = sums_[phase];
    for (const auto& [name, count] : counts.waits) sum.waits[name] += count;
    for (const auto& [name, count] : counts.kernels) sum.kernels[name] += count;
    sum.uploads += counts.uploads;
    sum.read_backs += counts.read_backs;
  }
}

std::string HostWaitReport::Text() const {
  if (num_steps_ == 0) return "host waits: no step ran";
  const auto mean = [&](int64_t count) {
    return Fixed(static_cast<double>(count) / static_cast<double>(num_steps_), 1);
  };
  std::string text = Concat("host waits, means of ", num_steps_, " steps:");
  int64_t num_waits = 0, num_reads = 0;
  for (const std::string& phase : InOrder(sums_)) {
    const ops::HostCounts& counts = sums_.at(phase);
    num_waits += counts.num_waits(), num_reads += counts.read_backs;
    text += Concat("\n  ", phase, ": ", mean(counts.num_waits()), " waits, ",
                   mean(counts.read_backs), " reads, ", mean(counts.uploads), " uploads, ",
                   mean(counts.num_kernels()), " launches");
    for (const auto& [name, count] : counts.waits)
      text += Concat("\n    waits in ", name, ": ", mean(count));
  }
  if (num_waits == 0 && num_reads == num_steps_)
    return text + "\n  the only wait is the one read of a step's scalars";
  return text + Concat("\n  a step waits ", mean(num_waits + num_reads),
                       " times; only 1, the read of its scalars, is needed");
}

RunTrace::RunTrace(const TraceConfig& config, dist::RankContext& context)
    : config_(config), context_(context), trace_(context.rank()), steps_left_(config.steps) {
  if (config.file.empty()) return;
  ckpt::OnRankZero(context.control(), {"trace_file", 0}, [&] {
    RequireWritable(config.file, ExitCode::kEnvironment);  // An existing file remains until then.
    return std::string();
  });
  context.flight().TraceInto(&trace_);
  open_ = true;
}

RunTrace::~RunTrace() { context_.flight().TraceInto(nullptr); }

void RunTrace::Read(int64_t begin_us, int64_t end_us) {
  if (open_) trace_.Slice("loader", "read", begin_us, end_us);
}

void RunTrace::Save(int64_t step, int64_t begin_us, int64_t end_us) {
  if (open_) trace_.Slice("saves", Concat("save of step ", step), begin_us, end_us);
}

void RunTrace::Step(int64_t step, int64_t begin_us, int64_t end_us) {
  if (!open_) return;
  trace_.Slice("steps", Concat("step ", step), begin_us, end_us);
  if (--steps_left_ == 0) Finish();
}

void RunTrace::Finish() {
  if (!open_) return;
  open_ = false;
  context_.flight().TraceInto(nullptr);
  const auto events = dist::AllGatherBytes(context_.control(), trace_.Events(), {"trace", 0});
  ckpt::OnRankZero(context_.control(), {"trace_file", 1}, [&] {
    try {
      WriteOutput(config_.file, TraceFile(events), ExitCode::kEnvironment);
      HL_INFO("train", "wrote ", config_.file.string(), ": open it in ui.perfetto.dev");
    } catch (const Error& error) {  // Losing the trace is not a reason to lose the training.
      HL_WARN("train", "no trace: ", error.message());
    }
    return std::string();
  });
}

}  // namespace halflife::train
