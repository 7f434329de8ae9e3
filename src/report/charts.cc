#include "report/page.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "core/concat.h"
#include "report/axis.h"

namespace halflife::report {
namespace {

using Runs = std::vector<RunRecord>;
using SeriesOf = std::function<Series(const RunRecord&)>;

SeriesOf Metric(const std::string& key, double factor = 1) {
  return [key, factor](const RunRecord& run) {
    Series series = run.metric(key);
    for (Point& point : series) point.y *= factor;
    return series;
  };
}

// Uses the steps that have both metrics. A run that an older version started may lack one of them
// at first.
SeriesOf Percent(const std::string& part, const std::string& whole) {
  return [part, whole](const RunRecord& run) {
    const Series &parts = run.metric(part), &wholes = run.metric(whole);
    Series series;
    auto of = wholes.begin();
    for (const Point& point : parts) {
      while (of != wholes.end() && of->x < point.x) ++of;
      if (of == wholes.end()) break;
      if (of->x == point.x) series.push_back({point.x, 100 * point.y / of->y});
    }
    return series;
  };
}

// Returns an empty series if all values are 0, so that features which a run does not use get no
// chart.
SeriesOf NonZero(const SeriesOf& series_of) {
  return [series_of](const RunRecord& run) {
    Series series = series_of(run);
    const bool any =
        std::any_of(series.begin(), series.end(), [](const Point& point) { return point.y != 0; });
    return any ? series : Series();
  };
}

bool KnowTokens(const Runs& runs) {
  return std::all_of(runs.begin(), runs.end(),
                     [](const RunRecord& run) { return run.tokens_per_step > 0; });
}

// The quantity on the x axis.
enum class XAxis {
  kStep,    // Tokens are used instead if the runs' steps differ in size.
  kTokens,  // Always tokens.
  kTime     // Time of training, including validations, saves and steps that were lost.
};

struct TimeUnit {
  double seconds = 1;
  const char* name = "seconds";
};

// Returns the unit in which the duration of the longest run has at most four digits.
TimeUnit UnitFor(const Runs& runs) {
  double longest = 0;
  for (const RunRecord& run : runs) longest = std::max(longest, run.elapsed_s);
  if (longest < 300) return {};
  return longest < 3 * 3600 ? TimeUnit{60, "minutes"} : TimeUnit{3600, "hours"};
}

// Returns `series` over the time of its steps. Steps without a known time are omitted. Both inputs
// ascend.
Series OverTime(const Series& series, const Series& elapsed, double unit_seconds) {
  Series out;
  size_t at = 0;
  for (const Point& point : series) {
    while (at < elapsed.size() && elapsed[at].x < point.x) ++at;
    if (at == elapsed.size()) break;
    const double time = elapsed[at].y / unit_seconds;
    // If the clock of an attempt did not advance, its points would form a vertical line, but x of a
    // Series must ascend strictly.
    const bool ascends = out.empty() || time > out.back().x;
    if (elapsed[at].x == point.x && ascends) out.push_back({time, point.y});
  }
  return out;
}

class ChartMaker {
 public:
  explicit ChartMaker(const Runs& runs) : runs_(runs) {
    by_tokens_ =
        KnowTokens(runs) && std::any_of(runs.begin(), runs.end(), [&](const RunRecord& run) {
          return run.tokens_per_step != runs[0].tokens_per_step;
        });
  }

  // Returns `spec` with its curves.
  PlotSpec Make(PlotSpec spec, const SeriesOf& series_of, XAxis axis = XAxis::kStep) const {
    if (by_tokens_ && axis == XAxis::kStep) axis = XAxis::kTokens;
    spec.x_name = axis == XAxis::kTime     ? Concat(time_unit_.name, " of training")
                  : axis == XAxis::kTokens ? "tokens"
                                           : "step";
    for (size_t i = 0; i < runs_.size(); ++i) {
      Series resumes;
      for (const int64_t step : runs_[i].resumes) {
        resumes.push_back({static_cast<double>(step), 0});
      }
      Curve curve{.name = runs_[i].name,
                  .style = static_cast<int>(i),
                  .points = Over(axis, runs_[i], series_of(runs_[i]))};
      for (const Point& resume : Over(axis, runs_[i], std::move(resumes))) {
        curve.resumes.push_back(resume.x);
      }
      spec.curves.push_back(std::move(curve));
    }
    return spec;
  }

 private:
  // Converts a series over steps to a series over the axis.
  Series Over(XAxis axis, const RunRecord& run, Series series) const {
    if (axis == XAxis::kTime) return OverTime(series, run.metric("elapsed_s"), time_unit_.seconds);
    if (axis == XAxis::kStep) return series;
    for (Point& point : series) point.x = run.tokens_at(point.x);
    return series;
  }

  const Runs& runs_;
  const TimeUnit time_unit_ = UnitFor(runs_);
  bool by_tokens_;
};

bool HasPoints(const PlotSpec& spec) {
  return std::any_of(spec.curves.begin(), spec.curves.end(),
                     [](const Curve& curve) { return !curve.points.empty(); });
}

// Returns the names after "val_loss/": those of validation sets and of the files of a text.
std::set<std::string> NamesOfValidationLosses(const Runs& runs) {
  constexpr std::string_view kPrefix = "val_loss/";
  std::set<std::string> names;
  for (const RunRecord& run : runs)
    for (const auto& [key, series] : run.metrics)
      if (key.starts_with(kPrefix)) names.insert(key.substr(kPrefix.size()));
  return names;
}

bool AnyHas(const Runs& runs, const char* metric) {
  return std::ranges::any_of(runs,
                             [&](const RunRecord& run) { return !run.metric(metric).empty(); });
}

// Pairs of answers (train.preference) have one loss and one reward margin each.
constexpr char kOfPairs[] = "reward_margin", kOfClassifiers[] = "val_f1_macro";

ChartGroup LossCharts(const Runs& runs, const ChartMaker& maker) {
  ChartGroup group{.title = "Loss", .plots = {}};
  const bool per_token = !AnyHas(runs, kOfPairs) && !AnyHas(runs, kOfClassifiers);
  const char* const unit = per_token ? ", nats per token" : "";
  group.plots.push_back(maker.Make({.title = Concat("Training loss", unit)}, Metric("loss")));
  group.plots.push_back(
      maker.Make({.title = Concat("Validation loss", unit), .markers = true}, Metric("val_loss")));
  constexpr size_t kMaxNamedSets = 12;  // A text may have a hundred files.
  if (const auto names = NamesOfValidationLosses(runs); names.size() <= kMaxNamedSets)
    for (const std::string& name : names)
      group.plots.push_back(
          maker.Make({.title = Concat("Validation loss of ", name), .markers = true},
                     Metric("val_loss/" + name)));
  if (KnowTokens(runs)) {
    group.plots.push_back(maker.Make({.title = "Training loss, both axes logarithmic",
                                      .note = "a power law is a straight line",
                                      .x_scale = Scale::kLog,
                                      .y_scale = Scale::kLog},
                                     Metric("loss"), XAxis::kTokens));
  }
  const auto add_by_time = [&](PlotSpec spec, const SeriesOf& series_of) {
    PlotSpec plot = maker.Make(std::move(spec), series_of, XAxis::kTime);
    if (HasPoints(plot)) group.plots.push_back(std::move(plot));
  };
  const char* const kNote = "all attempts, including validations, saves and lost steps";
  add_by_time({.title = "Training loss by time", .note = kNote}, Metric("loss"));
  add_by_time({.title = "Validation loss by time", .note = kNote, .markers = true},
              Metric("val_loss"));
  return group;
}

PlotSpec GradientNorm(const Runs& runs, const ChartMaker& maker) {
  PlotSpec spec =
      maker.Make({.title = "Gradient norm", .note = "before clipping", .y_scale = Scale::kLog},
                 Metric("grad_norm"));
  const double clip = runs[0].clip_norm;
  const bool same = std::all_of(runs.begin(), runs.end(),
                                [clip](const RunRecord& run) { return run.clip_norm == clip; });
  if (same && clip > 0) spec.rules.push_back({clip, Concat("clipped above ", ShortNumber(clip))});
  return spec;
}

// Adds a group with the plots that have points, if there are any.
void AddGroup(std::vector<ChartGroup>& groups, const std::string& title,
              std::vector<PlotSpec> plots) {
  std::erase_if(plots, [](const PlotSpec& plot) { return !HasPoints(plot); });
  if (!plots.empty()) groups.push_back({title, std::move(plots)});
}

std::vector<ChartGroup> LearningCharts(const Runs& runs, const ChartMaker& maker) {
  std::vector<ChartGroup> groups = {LossCharts(runs, maker)};
  const char* const correct =
      AnyHas(runs, kOfPairs) ? "share of pairs in which the chosen answer has the larger reward"
                             : "share of labels that are predicted as the most likely";
  AddGroup(
      groups, "Accuracy",
      {maker.Make(
          {.title = "Validation accuracy", .note = correct, .y_from_zero = true, .markers = true},
          Metric("val_accuracy"))});
  AddGroup(
      groups, "Reward of the chosen answer minus that of the rejected one",
      {maker.Make({.title = "Training pairs"}, Metric(kOfPairs)),
       maker.Make({.title = "Validation pairs", .markers = true}, Metric("val_reward_margin"))});
  return groups;
}

}  // namespace

std::vector<ChartGroup> LearningCharts(const Runs& runs) {
  return LearningCharts(runs, ChartMaker(runs));
}

std::vector<ChartGroup> Charts(const Runs& runs) {
  const ChartMaker maker(runs);
  std::vector<ChartGroup> groups = LearningCharts(runs, maker);
  const auto add = [&groups](const std::string& title, std::vector<PlotSpec> plots) {
    AddGroup(groups, title, std::move(plots));
  };
  add("Optimisation", {GradientNorm(runs, maker),
                       maker.Make({.title = "Learning rate", .y_from_zero = true}, Metric("lr"))});
  add("Speed",
      {maker.Make({.title = "Tokens per second", .note = "over all ranks", .y_from_zero = true},
                  Metric("tokens_per_s")),
       maker.Make({.title = "Model FLOPs utilisation, %",
                   .note = "share of the device's peak, including mixing",
                   .y_from_zero = true},
                  Metric("mfu_full", 100)),
       maker.Make(
           {.title = "Waiting for data, % of a step", .note = "on rank 0", .y_from_zero = true},
           Percent("data_wait_ms", "step_ms")),
       maker.Make({.title = "Exposed communication, % of a step",
                   .note = "communication that backward does not hide, on rank 0",
                   .y_from_zero = true},
                  Percent("exposed_comm_ms", "step_ms")),
       maker.Make({.title = "Waiting for the other slices of rows, % of a step",
                   .note = "a part of exposed communication",
                   .y_from_zero = true},
                  NonZero(Percent("exposed_rows_ms", "step_ms"))),
       maker.Make({.title = "Waiting for parameters of other ranks, % of a step",
                   .note = "a part of exposed communication",
                   .y_from_zero = true},
                  NonZero(Percent("exposed_param_ms", "step_ms"))),
       maker.Make({.title = "The slowest rank's computing, % of the median rank's",
                   .note = "all ranks wait for it",
                   .markers = true},
                  Percent("busy_ms_max", "busy_ms_median"))});
  add("Memory and checkpoints",
      {maker.Make({.title = "Peak memory, GiB", .note = "so far, on rank 0", .y_from_zero = true},
                  Metric("peak_memory_bytes", 1.0 / (1 << 30))),
       maker.Make({.title = "Training blocked by a save, ms", .y_from_zero = true, .markers = true},
                  Metric("save_blocked_ms"))});
  return groups;
}

}  // namespace halflife::report
