#include "train/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/concat.h"
#include "core/error.h"
#include "core/human.h"

namespace halflife::train {
namespace {

int64_t DecaySteps(const ScheduleConfig& config, int64_t total_steps) {
  return config.decay_steps > 0 ? config.decay_steps : std::max<int64_t>(total_steps / 10, 1);
}

// Returns the phases of the kinds other than "phases". A decay begins one step after
// StepsBeforeDecay, because the step there has the peak rate as well, unless the decay has only one
// step.
std::vector<Phase> PhasesOfKind(const ScheduleConfig& config, int64_t total_steps) {
  HL_CHECK(config.kind == "cosine" || config.kind == "linear" || config.kind == "constant" ||
               config.kind == "wsd",
           "schedule kind ", config.kind);
  const int64_t warmup = config.warmup_steps;
  std::vector<Phase> phases;
  if (warmup > 0) phases.push_back({.name = "warmup", .begin = 0, .end = warmup, .from = 0});
  if (warmup >= total_steps) return phases;
  const bool decays = config.kind != "constant" && total_steps > 1;
  const int64_t decay =
      decays ? std::min(StepsBeforeDecay(config, total_steps) + 1, total_steps - 1) : total_steps;
  if (warmup < decay) phases.push_back({.name = "stable", .begin = warmup, .end = decay});
  if (decays)
    phases.push_back({.name = "decay",
                      .begin = decay,
                      .end = total_steps,
                      .to = config.final_lr_ratio,
                      .shape = config.kind == "wsd" ? config.decay_shape : config.kind});
  return phases;
}

// Returns the last step of each phase of a recipe, as if the run were long enough. Shares are
// rounded in sum, so that shares whose sum is 1 end with the run.
std::vector<int64_t> EndsOf(const std::vector<PhaseConfig>& phases, int64_t total_steps) {
  const auto total = static_cast<double>(total_steps);
  std::vector<int64_t> lengths;
  double shares = 0;
  int64_t sum = 0, of_shares = 0;
  for (const PhaseConfig& phase : phases) {
    shares += phase.share;
    const int64_t rounded = std::llround(shares * total);
    lengths.push_back(phase.steps > 0 ? phase.steps : rounded - of_shares);
    of_shares = rounded;
    sum += lengths.back();
  }
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    const bool is_rest = phases[i].steps == 0 && phases[i].share == 0;
    end += is_rest ? std::max<int64_t>(total_steps - sum, 0) : lengths[i];
    ends.push_back(end);
  }
  return ends;
}

}  // namespace

std::string ScheduleConfig::PhasesText() const {
  return Join(phases, ", ", [](const PhaseConfig& phase) {
    return Concat(phase.steps > 0   ? Concat(phase.steps, " steps")
                  : phase.share > 0 ? ShortestText(phase.share) + " of the run"
                                    : "the rest",
                  phase.from ? " from " + ShortestText(*phase.from) : "",
                  phase.to ? " to " + ShortestText(*phase.to) : "",
                  phase.shape == "linear" ? "" : " (" + phase.shape + ")");
  });
}

double Phase::FactorAt(int64_t step) const {
  const double progress = static_cast<double>(step - begin + 1) / static_cast<double>(end - begin);
  if (shape == "cosine")
    return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  if (shape == "exponential") return from * std::pow(to / from, progress);
  HL_CHECK(shape == "linear" || shape == "sqrt", "schedule shape ", shape);
  return from - (from - to) * (shape == "sqrt" ? std::sqrt(progress) : progress);
}

std::vector<Phase> PhasesOf(const ScheduleConfig& config, int64_t total_steps) {
  if (config.kind != "phases") return PhasesOfKind(config, total_steps);
  const std::vector<int64_t> ends = EndsOf(config.phases, total_steps);
  std::vector<Phase> phases;
  int64_t begin = 0;
  double rate = 1;
  for (size_t i = 0; i < ends.size(); ++i) {
    const PhaseConfig& given = config.phases[i];
    const double from = given.from.value_or(rate);
    rate = given.to.value_or(from);
    // A share may be less than a step.
    if (ends[i] > begin || (phases.empty() && i + 1 == ends.size()))
      phases.push_back({given.name, begin, ends[i], from, rate, given.shape});
    begin = ends[i];
  }
  return phases;
}

int64_t StepsBeforeDecay(const ScheduleConfig& config, int64_t total_steps) {
  if (config.kind == "constant") return total_steps;
  if (config.kind == "phases") {
    const std::vector<Phase> phases = PhasesOf(config, total_steps);
    const auto falls = std::ranges::find_if(phases, [](const Phase& p) { return p.to < p.from; });
    return falls == phases.end() ? total_steps : falls->begin;
  }
  if (config.kind != "wsd") return config.warmup_steps;
  return std::max(config.warmup_steps, total_steps - DecaySteps(config, total_steps));
}

double LearningRateFactor(const ScheduleConfig& config, int64_t step, int64_t total_steps) {
  const std::vector<Phase> phases = PhasesOf(config, total_steps);
  for (const Phase& phase : phases)
    if (step < phase.end) return phase.FactorAt(step);
  return phases.back().to;
}

double LearningRateFactorOfEpoch(const ScheduleConfig& config, int64_t epoch, int64_t max_epochs) {
  return LearningRateFactor(config, epoch, max_epochs + 1);
}

namespace {

std::string PhasesWarning(const ScheduleConfig& config, int64_t total_steps) {
  const std::vector<Phase> phases = PhasesOf(config, total_steps);
  const Phase& last = phases.back();
  if (last.end == total_steps) return "";
  const std::string run =
      Concat("step ", last.end, ", and the run has ", total_steps, " steps (train.steps): ");
  if (last.end < total_steps)
    return Concat("the phases of schedule.phase end at ", run, "the learning rate then stays at ",
                  ShortestText(last.to),
                  " x optimizer.lr. Give one phase neither steps nor share, "
                  "so that it lasts for the rest of the run, or use longer phases.");
  const auto cut =
      std::ranges::find_if(phases, [&](const Phase& p) { return p.end > total_steps; });
  return Concat("the phases of schedule.phase end at ", run, "phase ", cut->name,
                " is cut, and the run ends at ",
                ShortestText(LearningRateFactor(config, total_steps - 1, total_steps)),
                " x optimizer.lr. Use shorter phases or a longer run.");
}

}  // namespace

std::string ScheduleWarning(const ScheduleConfig& config, int64_t total_steps) {
  if (config.kind == "phases") return PhasesWarning(config, total_steps);
  const int64_t warmup = config.warmup_steps;
  if (warmup > 1 && warmup >= total_steps)
    return Concat("schedule.warmup_steps ", warmup, " is not below the run's ", total_steps,
                  " steps (train.steps): the learning rate ",
                  warmup > total_steps ? "never reaches its peak, optimizer.lr"
                                       : "reaches its peak, optimizer.lr, only in the last step",
                  ". Use fewer warm-up steps or a longer run.");
  const int64_t decay = DecaySteps(config, total_steps);
  if (config.kind == "wsd" && warmup < total_steps && decay > total_steps - warmup)
    return Concat("schedule.warmup_steps ", warmup, " and a decay of ", decay,
                  " steps (schedule.decay_steps) do not fit in the run's ", total_steps,
                  " steps (train.steps): the decay is cut to ", total_steps - warmup,
                  " steps. Shorten one of them, or use a longer run.");
  return "";
}

}  // namespace halflife::train
