#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <regex>

#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "data/blend.h"
#include "train/config/run_config.h"

namespace halflife::train {
namespace {

// Collects one line per problem: the field, its value and the allowed values.
class Problems {
 public:
  template <typename Value>
  void Require(bool ok, const std::string& field, const Value& met, const std::string& works) {
    if (!ok) lines_ += Concat("\n  ", field, ": ", met, ". Use ", works);
  }
  void OneOf(const std::string& field, const std::string& met,
             const std::vector<std::string>& choices) {
    if (std::ranges::count(choices, met) > 0) return;
    lines_ += Concat("\n  ", field, ": '", met, "'. Use one of ", Join(choices, ", "));
  }
  void Add(const std::string& line) { lines_ += "\n  " + line; }
  const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
};

// Returns true if `name` can be a part of metrics, of warnings and of the text of --set, as names
// of sets, sources and phases are.
bool IsPlainName(const std::string& name) {
  constexpr char kPlain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  return !name.empty() && name.find_first_not_of(kPlain) == std::string::npos;
}

void CheckGroups(const std::vector<ParameterGroup>& groups, Problems& problems) {
  for (size_t i = 0; i < groups.size(); ++i) {
    const ParameterGroup& group = groups[i];
    const auto name = [i](const char* field) { return Concat("optimizer.group.", i, ".", field); };
    problems.Require(!group.match.empty(), name("match"), "''",
                     "a part of the parameters' names, or '.' for all of them");
    try {
      const std::regex expression(group.match);
    } catch (const std::regex_error& error) {
      problems.Add(Concat(name("match"), ": '", group.match, "' is no regular expression (",
                          error.what(), "). Use ECMAScript's syntax."));
    }
    problems.Require(std::isfinite(group.lr_scale) && group.lr_scale >= 0, name("lr_scale"),
                     group.lr_scale, "a number >= 0");
    problems.Require(group.weight_decay.value_or(0) >= 0, name("weight_decay"),
                     group.weight_decay.value_or(0), "a number >= 0");
  }
}

void CheckPhases(const ScheduleConfig& schedule, Problems& problems) {
  constexpr int64_t kMaxPhaseSteps = int64_t{1} << 40;
  double shares = 0, reached = 1;
  std::vector<std::string> names, rest;
  for (size_t i = 0; i < schedule.phases.size(); ++i) {
    const PhaseConfig& phase = schedule.phases[i];
    const auto field = [i](const char* name) { return Concat("schedule.phase.", i, ".", name); };
    problems.Require(IsPlainName(phase.name), field("name"), "'" + phase.name + "'",
                     "letters, digits, '_', '-' and '.'");
    problems.Require(std::ranges::count(names, phase.name) == 0, field("name"), phase.name,
                     "a name that no other phase has");
    problems.Require(phase.steps >= 0 && phase.steps <= kMaxPhaseSteps, field("steps"), phase.steps,
                     Concat("1 to ", kMaxPhaseSteps));
    problems.Require(phase.share >= 0 && phase.share <= 1, field("share"), phase.share, "(0, 1]");
    problems.Require(phase.steps == 0 || phase.share == 0, field("share"), phase.share,
                     "either steps or share");
    problems.OneOf(field("shape"), phase.shape, {"linear", "cosine", "sqrt", "exponential"});
    for (const auto& [name, rate] : {std::pair("from", phase.from), std::pair("to", phase.to)})
      problems.Require(!rate || (std::isfinite(*rate) && *rate >= 0), field(name), rate.value_or(0),
                       "a number >= 0");
    const double from = phase.from.value_or(reached);
    reached = phase.to.value_or(from);
    problems.Require(phase.shape != "exponential" || (from > 0 && reached > 0), "schedule.phase",
                     Concat(phase.name, ", exponential from ", from, " to ", reached),
                     "rates above 0, or another shape");
    names.push_back(phase.name);
    shares += phase.share;
    if (phase.steps == 0 && phase.share == 0) rest.push_back(phase.name);
  }
  problems.Require(rest.size() <= 1, "schedule.phase", Join(rest, " and "),
                   "steps or share in all phases but one: only one can last for the rest of the "
                   "run");
  problems.Require(shares <= 1 + 1e-9, "schedule.phase", Concat("shares with the sum ", shares),
                   "a sum of at most 1");
}

void CheckSchedule(const RunConfig& c, Problems& problems) {
  const ScheduleConfig& schedule = c.schedule;
  problems.OneOf("schedule.kind", schedule.kind, {"cosine", "linear", "constant", "wsd", "phases"});
  problems.Require(schedule.warmup_steps >= 0, "schedule.warmup_steps", schedule.warmup_steps,
                   "a number >= 0");
  problems.Require(schedule.decay_steps >= 0, "schedule.decay_steps", schedule.decay_steps,
                   "a number >= 0");
  problems.OneOf("schedule.decay_shape", schedule.decay_shape, {"linear", "sqrt"});
  // A run of kind wsd that goes on with a constant rate may keep its shape.
  problems.Require(
      schedule.decay_shape == "linear" || schedule.kind == "wsd" || schedule.kind == "constant",
      "schedule.decay_shape", schedule.decay_shape,
      "linear, or schedule.kind wsd, which has a final decay");
  problems.Require(!schedule.per_epoch || c.train.max_epochs > 0, "schedule.per_epoch", "true",
                   "false, or set train.max_epochs, the number of epochs of the schedule");
  problems.Require(!schedule.per_epoch || schedule.warmup_steps == 0, "schedule.warmup_steps",
                   schedule.warmup_steps, "0 with schedule.per_epoch");
  problems.Require(!schedule.per_epoch || schedule.kind != "wsd", "schedule.kind", "wsd",
                   "cosine, linear or constant with schedule.per_epoch");
  problems.Require(schedule.final_lr_ratio >= 0 && schedule.final_lr_ratio <= 1,
                   "schedule.final_lr_ratio", schedule.final_lr_ratio, "[0, 1]");
  const bool has_phases = !schedule.phases.empty();
  problems.Require(has_phases == (schedule.kind == "phases"), "schedule.kind", schedule.kind,
                   has_phases ? "phases with schedule.phase, or --set 'schedule.phase=[]'"
                              : "another kind, or add a schedule.phase");
  if (!has_phases) return;
  problems.Require(schedule.warmup_steps == 0, "schedule.warmup_steps", schedule.warmup_steps,
                   "0 with schedule.phase, and a phase of this length");
  problems.Require(schedule.decay_steps == 0, "schedule.decay_steps", schedule.decay_steps,
                   "0 with schedule.phase, and a phase of this length");
  problems.Require(!schedule.per_epoch, "schedule.per_epoch", "true", "false with schedule.phase");
  if (schedule.kind == "phases") CheckPhases(schedule, problems);
}

void CheckOptimizer(const RunConfig& c, Problems& problems) {
  const OptimizerConfig& o = c.optimizer;
  const optim::AdamWConfig& a = o.adamw;
  problems.Require(std::isfinite(o.lr) && o.lr >= 0, "optimizer.lr", o.lr, "a number >= 0");
  problems.Require(a.beta1 >= 0 && a.beta1 < 1, "optimizer.beta1", a.beta1, "[0, 1)");
  problems.Require(a.beta2 >= 0 && a.beta2 < 1, "optimizer.beta2", a.beta2, "[0, 1)");
  // It is added in fp32.
  problems.Require(a.eps >= std::numeric_limits<float>::min(), "optimizer.eps", a.eps,
                   "a number of at least 1.2e-38, e.g. 1e-8");
  problems.Require(a.weight_decay >= 0, "optimizer.weight_decay", a.weight_decay, "a number >= 0");
  for (const std::string& problem : o.algorithm.config().Problems())
    problems.Add(Concat("optimizer.algorithm.", o.algorithm.name(), ".", problem));
  CheckGroups(o.groups, problems);
  problems.Require(o.ema_decay >= 0 && o.ema_decay < 1, "optimizer.ema_decay", o.ema_decay,
                   "[0, 1) (0: no average)");
  problems.Require(o.clip_norm >= 0, "optimizer.clip_norm", o.clip_norm, "a number >= 0 (0: off)");
  CheckSchedule(c, problems);
}

void CheckLoop(const RunConfig& c, int world_size, Problems& problems) {
  const LoopConfig& t = c.train;
  problems.Require(t.steps >= 1, "train.steps", t.steps, "a number >= 1");
  problems.Require(t.micro_batch >= 1, "train.micro_batch", t.micro_batch, "a number >= 1");
  problems.Require(t.global_batch >= 1, "train.global_batch", t.global_batch, "a number >= 1");
  // Bounds beyond which a step or a run would never end and counts would overflow.
  constexpr int64_t kMaxStepTokens = int64_t{1} << 32, kMaxRunTokens = int64_t{1} << 62;
  const int64_t max_rows = kMaxStepTokens / std::max<int64_t>(c.data.seq_len, 1);
  problems.Require(
      t.global_batch <= max_rows, "train.global_batch", t.global_batch,
      Concat("at most ", max_rows, " (2^32 tokens per step, with rows of ", c.data.seq_len, ")"));
  problems.Require(t.steps <= kMaxRunTokens / kMaxStepTokens, "train.steps", t.steps,
                   Concat("at most ", kMaxRunTokens / kMaxStepTokens));
  const int64_t max_micro_rows = INT32_MAX / std::max<int64_t>(c.data.seq_len, 1);
  problems.Require(
      c.data.seq_len <= 0 || t.micro_batch <= max_micro_rows, "train.micro_batch", t.micro_batch,
      Concat("at most ", max_micro_rows, " (micro_batch x seq_len must fit in 32 bits)"));
  if (t.micro_batch >= 1 && t.micro_batch <= max_rows) {
    const int of_row = c.parallel.row_ranks();
    const int sp = of_row >= 1 && world_size % of_row == 0 ? of_row : 1;
    const int64_t unit = t.micro_batch * world_size / sp;
    problems.Require(
        t.global_batch % unit == 0, "train.global_batch", t.global_batch,
        Concat("a multiple of micro_batch x ranks", sp > 1 ? " / ranks per row" : "", " = ",
               t.micro_batch, " x ", world_size, sp > 1 ? Concat(" / ", sp) : "", " = ", unit));
  }
  problems.Require(t.z_loss >= 0, "train.z_loss", t.z_loss, "a number >= 0");
  problems.OneOf("train.precision", t.precision, {"fp32", "bf16", "fp8"});
  problems.Require(t.fp8.min_width >= 16, "train.fp8.min_width", t.fp8.min_width, "a number >= 16");
  const int64_t width = Float8Config().min_width;
  problems.Require(t.precision == "fp8" || t.fp8.min_width == width, "train.fp8.min_width",
                   t.fp8.min_width,
                   Concat(width, " (the default) with train.precision ", t.precision,
                          ", which multiplies nothing in FP8, or train.precision fp8"));
  problems.OneOf("train.device", t.device, {"auto", "cpu", "cuda"});
  problems.OneOf("train.on_nonfinite", t.on_nonfinite, {"skip", "stop"});
  problems.Require(t.max_skips >= 0, "train.max_skips", t.max_skips, "a number >= 0");
  problems.Require(t.threads >= 0 && t.threads <= kMaxThreads, "train.threads", t.threads,
                   Concat("0 (cores / ranks of the host) to ", kMaxThreads));
  problems.Require(t.log_every >= 1, "train.log_every", t.log_every, "a number >= 1");
  problems.Require(t.max_epochs >= 0 && t.max_epochs <= (1 << 24), "train.max_epochs", t.max_epochs,
                   "0 (train.steps counts) to 16777216");
  problems.Require(t.stop_at_accuracy >= 0 && t.stop_at_accuracy < 1, "train.stop_at_accuracy",
                   t.stop_at_accuracy, "[0, 1) (0: off)");
  problems.Require(t.stop_at_accuracy == 0 || c.model.objective.name() != "next_token",
                   "train.stop_at_accuracy", t.stop_at_accuracy,
                   "0, or an objective that always has an accuracy: labelled, masked_token or "
                   "classification");
  problems.Require(t.stop_at_accuracy == 0 || c.eval.every > 0 || c.eval.every_epochs > 0,
                   "train.stop_at_accuracy", t.stop_at_accuracy,
                   "0 without eval.every and eval.every_epochs");
  problems.Require(t.patience >= 0, "train.patience", t.patience, "a number >= 0 (0: off)");
  problems.Require(t.patience == 0 || c.eval.every > 0 || c.eval.every_epochs > 0, "train.patience",
                   t.patience, "0 without eval.every and eval.every_epochs");
  problems.Require(t.patience == 0 || !c.data.is_blend() || c.ckpt.keeps_best_validation(),
                   "train.patience", t.patience,
                   "0 with data.source, or name the set to wait for in ckpt.keep_best");
  problems.Require(t.spike_sigmas >= 0, "train.spike_sigmas", t.spike_sigmas,
                   "a number >= 0 (0: off; 6 is usual)");
  problems.Require(t.max_rollbacks >= 0, "train.max_rollbacks", t.max_rollbacks,
                   "a number >= 0 (0: off)");
  problems.Require(t.max_rollbacks == 0 || t.spike_sigmas > 0, "train.max_rollbacks",
                   t.max_rollbacks, "0 without train.spike_sigmas, which defines a spike");
  problems.Require(t.max_rollbacks == 0 || c.ckpt.every > 0, "train.max_rollbacks", t.max_rollbacks,
                   "0 without ckpt.every: there is no checkpoint to go back to");
  // The data of a step is then not that of its epoch.
  problems.Require(t.max_rollbacks == 0 || !c.schedule.per_epoch, "train.max_rollbacks",
                   t.max_rollbacks, "0 with schedule.per_epoch, whose epochs are counted in steps");
  problems.Require(t.max_rollbacks == 0 || c.eval.every_epochs == 0, "train.max_rollbacks",
                   t.max_rollbacks, "0 with eval.every_epochs, or eval.every");
  problems.Require(t.rollback_spikes >= 1, "train.rollback_spikes", t.rollback_spikes,
                   "a number >= 1");
  problems.Require(t.rollback_window >= t.rollback_spikes, "train.rollback_window",
                   t.rollback_window,
                   Concat("at least train.rollback_spikes, ", t.rollback_spikes));
  problems.OneOf("train.recompute", t.recompute, {"none", "mixer", "block"});
  problems.Require(t.time_limit_s >= 0, "train.time_limit_s", t.time_limit_s, "a number >= 0");
}

void CheckPreference(const RunConfig& c, Problems& problems) {
  const PreferenceConfig& preference = c.train.preference;
  problems.OneOf("train.preference.loss", preference.loss, {"none", "dpo", "ipo"});
  problems.Require(std::isfinite(preference.beta) && preference.beta > 0, "train.preference.beta",
                   preference.beta, "a number > 0, e.g. 0.1");
  if (!preference.is_on()) return;
  const auto only = [&](bool holds, const std::string& setting) {
    problems.Require(holds, "train.preference.loss", preference.loss,
                     Concat("none with ", setting));
  };
  only(c.model.objective.name() == "next_token", "an objective other than next_token");
  only(!c.data.is_blend(), "data.source: the pairs must be in one dataset, data.path");
  only(c.eval.sets.empty(), "eval.set: only the split of data.path is validated");
  only(c.data.positions.plain(), "data.positions other than plain");
  only(c.train.z_loss == 0, "train.z_loss above 0");
  only(!c.train.cuda_graphs, "train.cuda_graphs: pairs have different numbers of tokens");
}

// Refuses settings that a recorded CUDA graph cannot replay, or with which it is never replayed.
void CheckGraphs(const RunConfig& c, int world_size, Problems& problems) {
  if (!c.train.cuda_graphs) return;
  const auto only = [&](bool holds, const std::string& setting) {
    problems.Require(holds, "train.cuda_graphs", "true", Concat("false with ", setting));
  };
  only(c.parallel.row_ranks() == 1,
       "parallel.sp above 1: the ranks communicate within a forward pass");
  only(c.parallel.slices == 0, "parallel.slices: each micro-batch is summed over ranks");
  only(c.parallel.zero_stage < 2, Concat("parallel.zero_stage ", c.parallel.zero_stage,
                                         ": gradients are reduced during backward"));
  only(world_size == 1 || c.train.global_batch / world_size > c.train.micro_batch,
       "one micro-batch per step on several ranks: the last one is never replayed");
}

void CheckShard(const RunConfig& c, int world_size, Problems& problems) {
  const ParallelConfig& p = c.parallel;
  problems.Require(p.prefetch >= -1 && p.prefetch <= 64, "parallel.prefetch", p.prefetch,
                   "0 to 64, or -1 (chosen from zero_stage)");
  if (p.shard == "auto" || p.shard == "world") return;
  problems.Require(p.zero_stage > 0, "parallel.shard", p.shard,
                   "auto with parallel.zero_stage 0, which shards nothing, or zero_stage 1 to 3");
  if (p.shard == "node") return;  // ResolveShard checks it.
  const int shard = p.given_shard(), rows = p.row_ranks();
  problems.Require(shard > 0 && world_size % shard == 0, "parallel.shard", p.shard,
                   Concat("auto, node, world or a divisor of the number of ranks, ", world_size));
  if (shard <= 0 || rows <= 0) return;
  problems.Require(shard % rows == 0 || rows % shard == 0, "parallel.shard", p.shard,
                   Concat("a multiple or a divisor of ", p.row_field(), ", ", rows));
}

void CheckRowRanks(const RunConfig& c, int world_size, Problems& problems) {
  const ParallelConfig& p = c.parallel;
  const bool whole = p.slices == 0 || p.sp < 1 || (p.slices > 0 && p.has_whole_slices());
  problems.Require(whole, "parallel.slices", p.slices,
                   Concat("0 (parallel.sp, ", p.sp, ") or a multiple of it"));
  if (!whole) return;
  problems.Require(p.slices == 0 || p.grad_reduce != "bf16", "parallel.grad_reduce", p.grad_reduce,
                   "fp32 or ordered with parallel.slices: rounded sums would depend on the mesh");
  const int processes = world_size / p.ranks_of_process();
  problems.Require(
      p.sp >= 1 && processes % p.sp == 0, "parallel.sp", p.sp,
      Concat("a divisor of the number of ", p.slices > 0 ? "processes" : "ranks", ", ", processes));
  problems.Require(p.row_ranks() <= c.data.seq_len, p.row_field(), p.row_ranks(),
                   Concat("at most data.seq_len, ", c.data.seq_len));
}

void CheckRowPositions(const RunConfig& c, Problems& problems) {
  const data::RowPositionsConfig& p = c.data.positions;
  problems.OneOf("data.positions", p.kind, {"plain", "skipwise", "randomised"});
  problems.Require(p.chunks >= 1, "data.positions_chunks", p.chunks, "a number >= 1");
  if (p.plain()) {
    problems.Require(p.length == 0, "data.positions_length", p.length,
                     "0 with plain positions, or data.positions skipwise or randomised");
    return;
  }
  problems.Require(p.length >= c.data.seq_len && p.length <= (1 << 24), "data.positions_length",
                   p.length, Concat("data.seq_len, ", c.data.seq_len, ", to 16777216"));
}

// Checks that every weight above 0 corresponds to at least one row in two cycles.
void CheckWeights(const DataConfig& data, Problems& problems) {
  std::vector<int64_t> steps = data.WeightSteps();
  steps.insert(steps.begin(), 0);
  for (const int64_t step : steps) {
    const std::vector<double> weights = data.WeightsAfter(step);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    problems.Require(sum > 0 && std::isfinite(sum), "data.source", Concat("weights at step ", step),
                     "at least one weight above 0");
    for (size_t i = 0; sum > 0 && i < weights.size(); ++i)
      problems.Require(weights[i] == 0 || weights[i] / sum >= 0.5 / data::kBlendCycle,
                       Concat("data.source.", i, ".weight"), Concat(weights[i], " at step ", step),
                       Concat("0, or at least ", sum * 0.5 / data::kBlendCycle,
                              ", 1/8192 of the sum of the weights"));
  }
}

void CheckSources(const RunConfig& c, Problems& problems) {
  const DataConfig& data = c.data;
  if (!data.is_blend()) {
    problems.Require(!data.path.empty(), "data.path", "''", "a folder made by `halflife prepare`");
    return;
  }
  problems.Require(data.path.empty(), "data.path", data.path, "'' with data.source");
  problems.Require(data.sources.size() <= data::kMaxBlendSources, "data.source",
                   Concat(data.sources.size(), " sources"),
                   Concat("at most ", data::kMaxBlendSources));
  problems.Require(data.epoch_end == "fill", "data.epoch_end", data.epoch_end,
                   "fill with data.source: each source has epochs of its own");
  problems.Require(c.train.max_epochs == 0, "train.max_epochs", c.train.max_epochs,
                   "0 with data.source: each source has epochs of its own. Set train.steps");
  problems.Require(c.eval.every_epochs == 0, "eval.every_epochs", c.eval.every_epochs,
                   "0 with data.source, and eval.every");
  problems.Require(c.train.stop_at_accuracy == 0, "train.stop_at_accuracy",
                   c.train.stop_at_accuracy, "0 with data.source");
  std::vector<std::string> names;
  bool weights = true;
  for (size_t i = 0; i < data.sources.size(); ++i) {
    const DataSource& source = data.sources[i];
    const auto field = [&](const char* name) { return Concat("data.source.", i, ".", name); };
    problems.Require(IsPlainName(source.name), field("name"), "'" + source.name + "'",
                     "letters, digits, '_', '-' and '.'");
    problems.Require(std::ranges::count(names, source.name) == 0, field("name"), source.name,
                     "a name that no other source has");
    problems.Require(!source.path.empty(), field("path"), "''",
                     "a folder made by `halflife prepare`");
    names.push_back(source.name);
    bool valid = std::isfinite(source.weight) && source.weight >= 0;
    for (const WeightChange& change : source.weight_at)
      valid = valid && std::isfinite(change.weight) && change.weight >= 0;
    problems.Require(valid, field("weight"), source.weight,
                     "numbers >= 0 for weight and weight_at");
    problems.Require(
        std::ranges::is_sorted(source.weight_at, std::less_equal(), &WeightChange::step) &&
            (source.weight_at.empty() || source.weight_at.front().step >= 1),
        field("weight_at"), "its steps", "ascending steps from 1 on");
    weights = weights && valid;
  }
  if (weights) CheckWeights(data, problems);
}

void CheckValidationSets(const RunConfig& c, Problems& problems) {
  std::vector<std::string> names, metrics = {"", "loss", "val_loss", "val_error"};
  const auto add = [&](const std::string& name) {
    names.push_back(name);
    metrics.push_back("val_loss/" + name);
    metrics.push_back("val_error/" + name);
  };
  for (const DataSource& source : c.data.sources) add(source.name);
  for (size_t i = 0; i < c.eval.sets.size(); ++i) {
    const ValidationSetConfig& set = c.eval.sets[i];
    const auto field = [&](const char* name) { return Concat("eval.set.", i, ".", name); };
    problems.Require(IsPlainName(set.name), field("name"), "'" + set.name + "'",
                     "letters, digits, '_', '-' and '.'");
    problems.Require(std::ranges::count(names, set.name) == 0, field("name"), set.name,
                     "a name that no other set and no source of data.source has");
    problems.Require(!set.path.empty(), field("path"), "''", "a folder made by `halflife prepare`");
    problems.OneOf(field("split"), set.split, {"train", "validation", "test"});
    problems.Require(set.windows >= 0, field("windows"), set.windows,
                     "a number >= 0 (0: as eval.windows)");
    add(set.name);
  }
  problems.OneOf("ckpt.keep_best", c.ckpt.store.retention.keep_best, metrics);
}

void CheckLora(const RunConfig& c, Problems& problems) {
  problems.Require(c.lora.rank >= 0 && c.lora.rank <= 4096, "lora.rank", c.lora.rank,
                   "0 (off) to 4096");
  problems.Require(std::isfinite(c.lora.alpha) && c.lora.alpha > 0, "lora.alpha", c.lora.alpha,
                   "a number > 0");
  problems.Require(c.lora.rank > 0 || c.lora.targets.empty(), "lora.targets", c.lora.targets,
                   "'' without lora.rank, or a rank such as 8");
  const bool lora = c.lora.rank > 0;
  problems.Require(!lora || c.optimizer.algorithm.name() != "muon", "optimizer.algorithm", "muon",
                   "adamw with lora.rank above 0: A and B are not matrices of hidden layers");
  problems.Require(!lora || c.train.precision != "fp8", "train.precision", "fp8",
                   "bf16 with lora.rank above 0");
  problems.Require(!lora || c.optimizer.ema_decay == 0, "optimizer.ema_decay",
                   c.optimizer.ema_decay,
                   "0 with lora.rank above 0: averages of A and B cannot be merged");
  problems.Require(c.lora.rank == 0 || c.parallel.zero_stage <= 2, "parallel.zero_stage",
                   c.parallel.zero_stage, "0, 1 or 2 with lora.rank above 0");
}

}  // namespace

void Validate(const RunConfig& config, int world_size) {
  Problems problems;
  CheckSources(config, problems);
  problems.Require(config.data.seq_len >= 1 && config.data.seq_len <= (1 << 24), "data.seq_len",
                   config.data.seq_len, "1 to 16777216");
  problems.Require(config.data.prefetch >= 0, "data.prefetch", config.data.prefetch,
                   "a number >= 0");
  problems.OneOf("data.epoch_end", config.data.epoch_end, {"fill", "short", "drop"});
  CheckRowPositions(config, problems);
  model::ModelConfig model = config.model;
  // The dataset's vocabulary is checked when it is opened.
  if (model.vocab_size == 0) model.vocab_size = 259;
  for (const std::string& line : model::Problems(model)) problems.Add(line);
  CheckOptimizer(config, problems);
  CheckLoop(config, world_size, problems);
  CheckGraphs(config, world_size, problems);
  CheckPreference(config, problems);
  problems.Require(config.eval.every >= 0, "eval.every", config.eval.every, "a number >= 0");
  problems.Require(config.eval.every_epochs >= 0, "eval.every_epochs", config.eval.every_epochs,
                   "a number >= 0");
  problems.OneOf("eval.split", config.eval.split, {"validation", "test"});
  problems.Require(config.eval.windows >= 0, "eval.windows", config.eval.windows,
                   "a number >= 0 (0: the whole split)");
  problems.Require(config.eval.sample_prompt.empty() || config.log.tensorboard,
                   "eval.sample_prompt", config.eval.sample_prompt,
                   "'', or log.tensorboard, which shows the continued text");
  problems.Require(
      config.eval.sample_prompt.empty() || config.model.objective.name() == "next_token",
      "eval.sample_prompt", config.eval.sample_prompt,
      Concat("'' with the objective ", config.model.objective.name(), ", which generates no text"));
  problems.Require(config.eval.sample_tokens >= 1, "eval.sample_tokens", config.eval.sample_tokens,
                   "1 or more");
  problems.Require(config.ckpt.every >= 0, "ckpt.every", config.ckpt.every, "a number >= 0");
  const ckpt::RetentionPolicy& retention = config.ckpt.store.retention;
  problems.Require(retention.keep_last >= 2, "ckpt.keep_last", retention.keep_last,
                   "2 or more (the older one replaces a damaged checkpoint)");
  problems.Require(retention.keep_every >= 0, "ckpt.keep_every", retention.keep_every,
                   "a number >= 0 (0: off)");
  CheckValidationSets(config, problems);
  problems.Require(
      !config.ckpt.keeps_best_validation() || config.eval.every > 0 || config.eval.every_epochs > 0,
      "ckpt.keep_best", retention.keep_best,
      "loss or '' without eval.every and eval.every_epochs: the run then validates only "
      "after its last step");
  problems.Require(config.ckpt.store.timeout_s > 0, "ckpt.timeout_s", config.ckpt.store.timeout_s,
                   "seconds > 0 (inf: no limit)");
  problems.OneOf("ckpt.on_error", config.ckpt.on_error, {"warn", "stop"});
  problems.Require(config.parallel.zero_stage >= 0 && config.parallel.zero_stage <= 3,
                   "parallel.zero_stage", config.parallel.zero_stage, "0, 1, 2 or 3");
  CheckShard(config, world_size, problems);
  CheckRowRanks(config, world_size, problems);
  problems.OneOf("parallel.grad_reduce", config.parallel.grad_reduce, {"fp32", "bf16", "ordered"});
  problems.OneOf("parallel.exchange", config.parallel.exchange, {"auto", "gather", "ring", "scan"});
  problems.Require(config.parallel.bucket_bytes == 0 || config.parallel.bucket_bytes >= 4096,
                   "parallel.bucket_bytes", config.parallel.bucket_bytes,
                   "4096 or more, or 0 (chosen from the number of ranks)");
  problems.Require(config.parallel.first_bucket_bytes >= 4096, "parallel.first_bucket_bytes",
                   config.parallel.first_bucket_bytes, "4096 or more");
  problems.Require(config.comm_timeout_s > 0, "comm.timeout_s", config.comm_timeout_s,
                   "seconds > 0 (inf: no limit)");
  CheckLora(config, problems);
  problems.OneOf("log.level", config.log.level, {"debug", "info", "warn", "error"});
  HL_CHECK_AS(ExitCode::kUsage, problems.lines().empty(),
              "the config has invalid values:", problems.lines());
}

}  // namespace halflife::train
