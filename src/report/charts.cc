#include "report/charts.h"

#include <algorithm>
#include <functional>

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

// Of the steps that have both: a run that an older program began may lack one of them for a while.
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

// No series where all of it is 0: what a run does not do needs no picture.
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

// What the points of a curve stand above.
enum class XAxis {
  kStep,    // tokens instead, where the runs' steps differ in size
  kTokens,  // in any case
  kTime     // that training took, validations, saves and lost stretches included
};

struct TimeUnit {
  double seconds = 1;
  const char* name = "seconds";
};

// The unit in which the longest of the runs is a number of at most four digits.
TimeUnit UnitFor(const Runs& runs) {
  double longest = 0;
  for (const RunRecord& run : runs) longest = std::max(longest, run.elapsed_s);
  if (longest < 300) return {};
  return longest < 3 * 3600 ? TimeUnit{60, "minutes"} : TimeUnit{3600, "hours"};
}

// `series` over the time at its steps; a step whose time is not known is left out. Both ascend.
Series OverTime(const Series& series, const Series& elapsed, double unit_seconds) {
  Series out;
  size_t at = 0;
  for (const Point& point : series) {
    while (at < elapsed.size() && elapsed[at].x < point.x) ++at;
    if (at == elapsed.size()) break;
    const double time = elapsed[at].y / unit_seconds;
    // An attempt whose clock stood still would draw a vertical line, and a Series ascends strictly.
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

  // The spec with its curves.
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
  // `series` over steps -> over the axis.
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

ChartGroup LossCharts(const Runs& runs, const ChartMaker& maker) {
  ChartGroup group{.title = "Loss", .plots = {}};
  group.plots.push_back(maker.Make({.title = "Training loss, nats per token"}, Metric("loss")));
  group.plots.push_back(maker.Make({.title = "Validation loss, nats per token", .markers = true},
                                   Metric("val_loss")));
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
  const char* const kNote = "of all attempts, with validations, saves and what was lost";
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

// Adds a group of the plots that have points, if there are any.
void AddGroup(std::vector<ChartGroup>& groups, const std::string& title,
              std::vector<PlotSpec> plots) {
  std::erase_if(plots, [](const PlotSpec& plot) { return !HasPoints(plot); });
  if (!plots.empty()) groups.push_back({title, std::move(plots)});
}

std::vector<ChartGroup> LearningCharts(const Runs& runs, const ChartMaker& maker) {
  std::vector<ChartGroup> groups = {LossCharts(runs, maker)};
  AddGroup(groups, "Accuracy",
           {maker.Make({.title = "Validation accuracy",
                        .note = "share of labels that are the likeliest token",
                        .y_from_zero = true,
                        .markers = true},
                       Metric("val_accuracy"))});
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
                   .note = "mixing included, of the device's peak",
                   .y_from_zero = true},
                  Metric("mfu_full", 100)),
       maker.Make(
           {.title = "Waiting for data, % of a step", .note = "on rank 0", .y_from_zero = true},
           Percent("data_wait_ms", "step_ms")),
       maker.Make({.title = "Exposed communication, % of a step",
                   .note = "what backward does not hide, on rank 0",
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
      {maker.Make({.title = "Peak memory, GiB", .note = "so far, of rank 0", .y_from_zero = true},
                  Metric("peak_memory_bytes", 1.0 / (1 << 30))),
       maker.Make({.title = "Training blocked by a save, ms", .y_from_zero = true, .markers = true},
                  Metric("save_blocked_ms"))});
  return groups;
}

}  // namespace halflife::report
