#include "sweep/results.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/human.h"
#include "report/axis.h"
#include "sweep/sweep_config.h"

namespace halflife::sweep {
namespace {

std::string Text(double value, Digits digits) {
  return digits == Digits::kAll ? ShortestText(value) : report::ShortNumber(value);
}

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

// Returns the index of an axis among the labels, or SIZE_MAX if there is no axis of this name.
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

// Returns the labels of an axis in the order of the grid.
std::vector<std::string> LabelsOf(const SweepConfig& sweep, const std::string& axis) {
  std::vector<std::string> labels;
  for (const Axis& candidate : sweep.axes) {
    if (candidate.name != axis) continue;
    for (const Point& point : candidate.points) labels.push_back(point.label);
  }
  return labels;
}

bool IsBetter(const Summary& summary, double value, double than) {
  return HigherIsBetter(summary.metric) ? value > than : value < than;
}

// Returns the labels of an axis as numbers. Empty if a label is not a finite number.
std::vector<double> NumbersOf(const Axis& axis) {
  std::vector<double> numbers;
  for (const Point& point : axis.points) {
    double value = 0;
    const char* const end = point.label.data() + point.label.size();
    const auto [parsed, error] = std::from_chars(point.label.data(), end, value);
    if (error != std::errc() || parsed != end || !std::isfinite(value)) return {};
    numbers.push_back(value);
  }
  return numbers;
}

bool SpansDecades(const std::vector<double>& numbers, double factor) {
  if (numbers.empty()) return false;
  const auto [low, high] = std::ranges::minmax(numbers);
  return low > 0 && high >= factor * low;
}

// Plots the metric over axis number `index`.
report::PlotSpec PlotByAxis(const SweepConfig& sweep, const std::vector<TrialResult>& results,
                            size_t index) {
  constexpr size_t kMaxTicks = 10;
  const Axis& axis = sweep.axes[index];
  const Summary& summary = sweep.summary;
  const std::vector<double> numbers = NumbersOf(axis);
  std::map<std::string, double> places;  // x of each label.
  for (size_t i = 0; i < axis.points.size(); ++i)
    places[axis.points[i].label] = numbers.empty() ? static_cast<double>(i) : numbers[i];
  report::Curve runs{.name = "all runs", .points = {}, .resumes = {}, .spread = {}, .cloud = true};
  std::map<double, double> best;
  std::vector<double> values;
  for (const TrialResult& result : results) {
    if (!result.best) continue;
    const double x = places.at(result.trial.labels[index]), y = result.best->y;
    runs.points.push_back({x, y});
    values.push_back(y);
    const auto [found, is_first] = best.emplace(x, y);
    if (!is_first && IsBetter(summary, y, found->second)) found->second = y;
  }
  report::Curve line{
      .name = "best", .points = {}, .resumes = {}, .spread = {}, .line = !numbers.empty()};
  for (const auto& [x, y] : best) line.points.push_back({x, y});
  const bool higher = HigherIsBetter(summary.metric);
  report::PlotSpec plot{
      .title = Concat(summary.metric, " over ", axis.name),
      .note = numbers.empty() ? "faint: all runs; solid: the best run of each"
                              : "faint: all runs; line: the best run at each value",
      .x_name = axis.name,
      .x_ticks = numbers.size() <= kMaxTicks ? numbers : std::vector<double>(),
      .x_scale = SpansDecades(numbers, 10) ? report::Scale::kLog : report::Scale::kLinear,
      .y_scale =
          !higher && SpansDecades(values, 100) ? report::Scale::kLog : report::Scale::kLinear,
      .y_from_zero = higher,
      .markers = true,
      .curves = {std::move(runs), std::move(line)},
      .rules = {}};
  if (numbers.empty()) plot.categories = LabelsOf(sweep, axis.name);
  return plot;
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
    std::ranges::sort(plot.x_ticks);
    // By curve and x, so that lines go from left to right whatever the order of the axis's values.
    std::map<std::string, std::multimap<double, const Group*>> groups;
    for (const Group& group : groups_)
      if (panel_label.empty() || Label(group, summary.panel) == panel_label)
        groups[CurveName(group)].emplace(std::stod(Label(group, summary.x)), &group);
    std::map<std::string, report::Curve> curves;
    for (const auto& [name, by_x] : groups) {
      for (const auto& [x, group] : by_x) {
        curves[name].points.push_back({x, group->mean});
        curves[name].spread.push_back(group->deviation);
      }
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
    if (!summary.over.empty())
      note = Concat("mean over ", summary.over, ", bars: one standard deviation");
    if (!summary.best_of.empty())
      note += Concat(note.empty() ? "" : "; ", "best of ", summary.best_of);
    return note;
  }

  const std::string& Label(const Group& group, const std::string& axis) const {
    return group.labels[IndexOf(axes_, axis)];
  }
  // Returns the labels that identify a curve, including those of axes without a role.
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
  // Returns the names in the order in which they first appear, which is the same in every panel.
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
  using Labels = std::vector<std::string>;
  std::vector<Labels> order;  // In the order of the grid.
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
      if (!best || IsBetter(sweep.summary, group.mean, best->mean)) best = group;
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

report::Table RunsTable(const SweepConfig& sweep, const std::vector<TrialResult>& results) {
  const auto or_dash = [](const auto& value) {
    return value ? report::ShortNumber(static_cast<double>(*value)) : std::string("–");
  };
  const std::string& metric = sweep.summary.metric;
  report::Table table{.title = "Runs", .header = {"run"}, .rows = {}};
  for (const Axis& axis : sweep.axes) table.header.push_back(axis.name);
  table.header.insert(table.header.end(), {"status", metric, "at step", "tokens/s", "time"});
  for (const TrialResult& result : results) {
    std::vector<std::string> row = {result.trial.name};
    row.insert(row.end(), result.trial.labels.begin(), result.trial.labels.end());
    const std::optional<report::Point>& best = result.best;
    row.insert(row.end(),
               {NameOf(result.status.state), best ? report::ShortNumber(best->y) : "–",
                best ? Concat(static_cast<int64_t>(best->x)) : "–", or_dash(result.tokens_per_s),
                result.status.attempts > 0 ? HumanSeconds(result.status.seconds) : "–"});
    table.rows.push_back(std::move(row));
  }
  return table;
}

report::Table FailuresTable(const std::vector<TrialResult>& results) {
  report::Table table{
      .title = "Failed runs", .header = {"run", "exit code", "attempts", "message"}, .rows = {}};
  for (const TrialResult& result : results) {
    const TrialStatus& status = result.status;
    if (status.state == TrialState::kFailed)
      table.rows.push_back(
          {result.trial.name, Concat(status.exit_code), Concat(status.attempts), status.message});
  }
  return table;
}

report::Table SummaryTable(const SweepConfig& sweep, const std::vector<Group>& groups,
                           Digits digits) {
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
      row.push_back(Text(value, digits));
    row.push_back(Concat(group.num_runs));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::vector<report::PlotSpec> Figure(const SweepConfig& sweep, const std::vector<Group>& groups) {
  if (sweep.summary.x.empty()) return {};
  return FigureMaker(sweep, groups).Plots();
}

std::vector<report::PlotSpec> PlotsByAxis(const SweepConfig& sweep,
                                          const std::vector<TrialResult>& results) {
  std::vector<report::PlotSpec> plots;
  for (size_t i = 0; i < sweep.axes.size(); ++i)
    if (sweep.axes[i].points.size() > 1) plots.push_back(PlotByAxis(sweep, results, i));
  return plots;
}

std::vector<size_t> BestRuns(const SweepConfig& sweep, const std::vector<TrialResult>& results,
                             size_t most) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < results.size(); ++i)
    if (results[i].steps > 0) indices.push_back(i);
  std::ranges::stable_sort(indices, [&](size_t a, size_t b) {
    const std::optional<report::Point>&first = results[a].best, &second = results[b].best;
    if (!first || !second) return first.has_value() && !second.has_value();
    return IsBetter(sweep.summary, first->y, second->y);
  });
  indices.resize(std::min(indices.size(), most));
  std::ranges::sort(indices);
  return indices;
}

}  // namespace halflife::sweep
