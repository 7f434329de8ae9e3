#include "sweep/results.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/human.h"
#include "core/shortest_text.h"
#include "sweep/metric.h"

namespace halflife::sweep {
namespace {

template <typename Value>
std::string OrNothing(const std::optional<Value>& value) {
  return value ? ShortestText(*value) : std::string();
}

std::vector<size_t> IndicesOfGroupAxes(const SweepConfig& sweep) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < sweep.axes.size(); ++i) {
    const std::string& name = sweep.axes[i].name;
    if (name != sweep.summary.over && name != sweep.summary.best_of) indices.push_back(i);
  }
  return indices;
}

// The index of an axis among the labels; SIZE_MAX: none of that name.
size_t IndexOf(const std::vector<std::string>& axes, const std::string& name) {
  const auto found = std::ranges::find(axes, name);
  return found == axes.end() ? SIZE_MAX : static_cast<size_t>(found - axes.begin());
}

std::vector<std::string> NamesOf(const std::vector<Axis>& axes) {
  std::vector<std::string> names;
  for (const Axis& axis : axes) names.push_back(axis.name);
  return names;
}

Group GroupOf(const std::vector<std::string>& labels, const std::string& best_label,
              const std::vector<double>& values) {
  Group group{.labels = labels,
              .best_label = best_label,
              .num_runs = static_cast<int>(values.size()),
              .low = *std::ranges::min_element(values),
              .high = *std::ranges::max_element(values)};
  const auto count = static_cast<double>(values.size());
  for (const double value : values) group.mean += value / count;
  if (values.size() < 2) return group;
  double squares = 0;
  for (const double value : values) squares += (value - group.mean) * (value - group.mean);
  group.deviation = std::sqrt(squares / (count - 1));
  return group;
}

// The labels of an axis, in the order of the grid.
std::vector<std::string> LabelsOf(const SweepConfig& sweep, const std::string& axis) {
  std::vector<std::string> labels;
  for (const Axis& candidate : sweep.axes) {
    if (candidate.name != axis) continue;
    for (const Point& point : candidate.points) labels.push_back(point.label);
  }
  return labels;
}

class FigureMaker {
 public:
  FigureMaker(const SweepConfig& sweep, const std::vector<Group>& groups)
      : sweep_(sweep), groups_(groups), axes_(GroupAxes(sweep)) {}

  std::vector<report::PlotSpec> Plots() const {
    const std::string& panel = sweep_.summary.panel;
    if (panel.empty()) return {Plot("", "")};
    std::vector<report::PlotSpec> plots;
    for (const std::string& label : LabelsOf(sweep_, panel))
      plots.push_back(Plot(label, Concat(", ", panel, " ", label)));
    return plots;
  }

 private:
  report::PlotSpec Plot(const std::string& panel_label, const std::string& title) const {
    const Summary& summary = sweep_.summary;
    report::PlotSpec plot{.title = summary.metric + title,
                          .note = Note(),
                          .x_name = summary.x,
                          .x_scale = report::Scale::kLog,
                          .y_from_zero = HigherIsBetter(summary.metric),
                          .markers = true,
                          .curves = {},
                          .rules = {}};
    for (const std::string& label : LabelsOf(sweep_, summary.x))
      plot.x_ticks.push_back(std::stod(label));
    std::map<std::string, report::Curve> curves;
    for (const Group& group : groups_) {
      if (!panel_label.empty() && Label(group, summary.panel) != panel_label) continue;
      report::Curve& curve = curves[CurveName(group)];
      curve.points.push_back({std::stod(Label(group, summary.x)), group.mean});
      curve.spread.push_back(group.deviation);
    }
    for (const std::string& name : CurveNames()) {
      report::Curve& curve = curves[name];
      curve.name = name;
      curve.style = static_cast<int>(plot.curves.size());
      plot.curves.push_back(curve);
    }
    return plot;
  }

  std::string Note() const {
    const Summary& summary = sweep_.summary;
    std::string note;
    if (!summary.over.empty()) note = Concat("mean over ", summary.over, ", bars: one deviation");
    if (!summary.best_of.empty())
      note += Concat(note.empty() ? "" : "; ", "best of ", summary.best_of);
    return note;
  }

  const std::string& Label(const Group& group, const std::string& axis) const {
    return group.labels[IndexOf(axes_, axis)];
  }
  // What is left of the labels, those of axes without a role too.
  std::string CurveName(const Group& group) const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < axes_.size(); ++i) {
      if (axes_[i] == sweep_.summary.line) parts.insert(parts.begin(), group.labels[i]);
      const bool has_role = axes_[i] == sweep_.summary.x || axes_[i] == sweep_.summary.panel ||
                            axes_[i] == sweep_.summary.line;
      if (!has_role) parts.push_back(axes_[i] + " " + group.labels[i]);
    }
    return parts.empty() ? sweep_.summary.metric : Join(parts, ", ");
  }
  // In the order in which they first appear, the same in every panel.
  std::vector<std::string> CurveNames() const {
    std::vector<std::string> names;
    for (const Group& group : groups_)
      if (std::ranges::count(names, CurveName(group)) == 0) names.push_back(CurveName(group));
    return names;
  }

  const SweepConfig& sweep_;
  const std::vector<Group>& groups_;
  const std::vector<std::string> axes_;
};

}  // namespace

TrialResult ResultOf(const Summary& summary, const Trial& trial, const TrialStatus& status,
                     const report::RunRecord* run) {
  TrialResult result{.trial = trial, .status = status};
  if (run == nullptr) return result;
  result.best = BestOf(*run, summary.metric);
  result.steps = run->last_step();
  result.num_parameters = run->num_parameters;
  result.tokens_per_s = report::Median(run->metric("tokens_per_s"));
  return result;
}

TrialResult ReadResult(const Summary& summary, const SweepFolder& folder, const Trial& trial,
                       const ReadRun& read_run) {
  const TrialStatus status = folder.Status(trial.name);
  if (!IsThere(folder.run(trial.name) / "metrics.jsonl"))
    return ResultOf(summary, trial, status, nullptr);
  const report::RunRecord run = read_run(folder.run(trial.name));
  return ResultOf(summary, trial, status, &run);
}

std::vector<TrialResult> ReadResults(const SweepConfig& sweep, const SweepFolder& folder,
                                     const ReadRun& read_run) {
  std::vector<TrialResult> results;
  for (const Trial& trial : Grid(sweep))
    results.push_back(ReadResult(sweep.summary, folder, trial, read_run));
  return results;
}

std::vector<std::string> GroupAxes(const SweepConfig& sweep) {
  std::vector<std::string> names;
  for (const size_t index : IndicesOfGroupAxes(sweep)) names.push_back(sweep.axes[index].name);
  return names;
}

std::vector<Group> SumUp(const SweepConfig& sweep, const std::vector<TrialResult>& results) {
  const std::vector<size_t> kept = IndicesOfGroupAxes(sweep);
  const size_t best_of = IndexOf(NamesOf(sweep.axes), sweep.summary.best_of);
  const bool higher = HigherIsBetter(sweep.summary.metric);
  using Labels = std::vector<std::string>;
  std::vector<Labels> order;  // in which the grid meets them
  std::map<Labels, std::map<std::string, std::vector<double>>> values;
  for (const TrialResult& result : results) {
    if (!result.best) continue;
    Labels labels;
    for (const size_t index : kept) labels.push_back(result.trial.labels[index]);
    if (!values.contains(labels)) order.push_back(labels);
    values[labels][best_of == SIZE_MAX ? "" : result.trial.labels[best_of]].push_back(
        result.best->y);
  }
  std::vector<Group> groups;
  for (const Labels& labels : order) {
    std::optional<Group> best;
    for (const auto& [label, of_label] : values[labels]) {
      const Group group = GroupOf(labels, label, of_label);
      if (!best || (higher ? group.mean > best->mean : group.mean < best->mean)) best = group;
    }
    groups.push_back(*best);
  }
  return groups;
}

report::Table ResultsTable(const SweepConfig& sweep, const std::vector<TrialResult>& results) {
  const std::string& metric = sweep.summary.metric;
  report::Table table{.title = "Runs", .header = {"run"}, .rows = {}};
  for (const Axis& axis : sweep.axes) table.header.push_back(axis.name);
  table.header.insert(table.header.end(),
                      {"state", "exit_code", "attempts", "seconds", "parameters", "steps", metric,
                       metric + "_step", "median_tokens_per_s", "message"});
  for (const TrialResult& result : results) {
    std::vector<std::string> row = {result.trial.name};
    row.insert(row.end(), result.trial.labels.begin(), result.trial.labels.end());
    const TrialStatus& status = result.status;
    row.insert(row.end(), {NameOf(status.state), Concat(status.exit_code), Concat(status.attempts),
                           Fixed(status.seconds, 1), OrNothing(result.num_parameters),
                           Concat(result.steps), result.best ? ShortestText(result.best->y) : "",
                           result.best ? Concat(static_cast<int64_t>(result.best->x)) : "",
                           OrNothing(result.tokens_per_s), status.message});
    table.rows.push_back(std::move(row));
  }
  return table;
}

report::Table SummaryTable(const SweepConfig& sweep, const std::vector<Group>& groups) {
  const Summary& summary = sweep.summary;
  report::Table table{.title = "Summary", .header = GroupAxes(sweep), .rows = {}};
  if (!summary.best_of.empty()) table.header.push_back("best_" + summary.best_of);
  for (const char* of : {"_mean", "_std", "_low", "_high"})
    table.header.push_back(summary.metric + of);
  table.header.emplace_back("runs");
  for (const Group& group : groups) {
    std::vector<std::string> row = group.labels;
    if (!summary.best_of.empty()) row.push_back(group.best_label);
    for (const double value : {group.mean, group.deviation, group.low, group.high})
      row.push_back(ShortestText(value));
    row.push_back(Concat(group.num_runs));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::vector<report::PlotSpec> Figure(const SweepConfig& sweep, const std::vector<Group>& groups) {
  if (sweep.summary.x.empty()) return {};
  return FigureMaker(sweep, groups).Plots();
}

}  // namespace halflife::sweep
