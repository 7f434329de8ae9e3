#include "sweep/sweep_config.h"

#include <halflife/sweep.pb.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/files.h"
#include "core/nearest.h"
#include "train/config/recipe_text.h"

namespace halflife::sweep {
namespace {

struct Metric {
  const char* name;
  bool higher_is_better;
  bool median;  // Uses the median of all steps, because single steps are noisy.
};
constexpr Metric kMetrics[] = {{"val_loss", false, false},
                               {"val_accuracy", true, false},
                               {"val_bits_per_byte", false, false},
                               {"tokens_per_s", true, true}};

// A validation set or source of a blend has its metric with its name: "val_loss/code".
const Metric* Find(const std::string& name) {
  const auto* found = std::ranges::find_if(kMetrics, [&](const Metric& metric) {
    return name == metric.name || (!metric.median && name.starts_with(Concat(metric.name, "/")));
  });
  return found == std::end(kMetrics) ? nullptr : found;
}

const Metric& Known(const std::string& name) {
  const Metric* metric = Find(name);
  HL_CHECK_AS(ExitCode::kInternal, metric != nullptr, "unknown metric ", name);
  return *metric;
}

}  // namespace

std::vector<std::string> KnownMetrics() {
  std::vector<std::string> names;
  for (const Metric& metric : kMetrics) names.emplace_back(metric.name);
  return names;
}

bool IsKnownMetric(const std::string& name) { return Find(name) != nullptr; }

bool HigherIsBetter(const std::string& name) { return Known(name).higher_is_better; }

std::optional<report::Point> BestOf(const report::RunRecord& run, const std::string& name) {
  const Metric& metric = Known(name);
  const report::Series& series = run.metric(name);
  if (metric.median) {
    const auto median = report::Median(series);
    if (!median) return std::nullopt;
    return report::Point{series.back().x, *median};
  }
  std::optional<report::Point> best;
  for (const report::Point& point : series) {
    if (!std::isfinite(point.y)) continue;
    if (!best || (metric.higher_is_better ? point.y > best->y : point.y < best->y)) best = point;
  }
  return best;
}

namespace {

constexpr char kDataset[] = "dataset:";

std::string FieldOf(const std::string& assignment) {
  return assignment.substr(0, assignment.find('='));
}
std::string ValueOf(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  return equals == std::string::npos ? "" : assignment.substr(equals + 1);
}

// Returns true if setting `later` overwrites what `earlier` has set: it is the same field or
// contains it.
bool Undoes(const std::string& later, const std::string& earlier) {
  return earlier == later || earlier.starts_with(later + ".");
}

std::vector<std::string> WordsOf(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// Collects all problems, so that one message lists everything that is wrong with the file.
class Problems {
 public:
  template <typename... Pieces>
  void Add(const Pieces&... pieces) {
    text_ += Concat("\n  ", pieces...);
  }
  void Throw(const std::string& name) const {
    HL_CHECK_AS(ExitCode::kUsage, text_.empty(), name, ":", text_);
  }

 private:
  std::string text_;
};

Axis ReadAxis(const proto::SweepAxis& message, Problems& problems) {
  const std::string& field = message.field();
  Axis axis{.name = message.name(), .points = {}};
  if (axis.name.empty()) axis.name = field.substr(field.rfind('.') + 1);
  if (field.empty() != (message.value_size() == 0) ||
      (message.value_size() > 0) == (message.point_size() > 0)) {
    problems.Add("axis '", axis.name,
                 "' needs either a field with values, or points. For example: axis { field: "
                 "\"optimizer.lr\" value: [\"1e-3\", \"3e-3\"] }");
  }
  for (const std::string& value : message.value())
    axis.points.push_back({.label = value, .set = {Concat(field, "=", value)}});
  for (const proto::SweepPoint& point : message.point())
    axis.points.push_back(
        {.label = point.label(), .set = {point.set().begin(), point.set().end()}});
  return axis;
}

// Returns true if the text can be a part of a folder name, as names of axes and labels are.
bool CanNameRuns(const std::string& text) {
  return !text.empty() && text.find_first_of("/\\,=\n\t \"") == std::string::npos;
}

void CheckLabels(const Axis& axis, Problems& problems) {
  if (!CanNameRuns(axis.name))
    problems.Add("axis '", axis.name,
                 "' cannot be used in names of runs. Use a name without spaces, quotes, slashes, "
                 "commas and =.");
  std::set<std::string> labels;
  for (const Point& point : axis.points) {
    if (!CanNameRuns(point.label))
      problems.Add("axis '", axis.name, "': '", point.label,
                   "' cannot be used in names of runs. Use a label without spaces, quotes, "
                   "slashes, commas and =.");
    if (!labels.insert(point.label).second)
      problems.Add("axis '", axis.name, "' has '", point.label, "' twice. Use each label once.");
    for (const std::string& set : point.set)
      if (set.find('=') == std::string::npos)
        problems.Add("axis '", axis.name, "': '", set,
                     "' is not an assignment. Write FIELD=VALUE.");
  }
}

// Checks that names of runs are short enough. With a suffix, they are file names, which can have at
// most 255 bytes.
void CheckNameLength(const SweepConfig& sweep, Problems& problems) {
  constexpr size_t kMax = 220;
  size_t longest = 0;
  for (const Axis& axis : sweep.axes) {
    size_t label = 0;
    for (const Point& point : axis.points) label = std::max(label, point.label.size());
    longest += axis.name.size() + label + 2;
  }
  if (longest > kMax + 1)
    problems.Add("the longest name of a run has ", longest - 1, " bytes, but at most ", kMax,
                 " are allowed. Use shorter names of axes or shorter labels.");
}

std::set<std::string> FieldsOf(const Axis& axis) {
  std::set<std::string> fields;
  for (const Point& point : axis.points)
    for (const std::string& set : point.set) fields.insert(FieldOf(set));
  return fields;
}

void CheckClashes(const std::vector<Axis>& axes, Problems& problems) {
  for (size_t later = 0; later < axes.size(); ++later) {
    for (size_t earlier = 0; earlier < later; ++earlier) {
      if (axes[later].name == axes[earlier].name)
        problems.Add("two axes are called '", axes[later].name, "'. Rename one of them.");
      for (const std::string& field : FieldsOf(axes[later])) {
        for (const std::string& before : FieldsOf(axes[earlier])) {
          if (Undoes(field, before))
            problems.Add("axis '", axes[later].name, "' sets ", field, ", which overwrites ",
                         before, " of axis '", axes[earlier].name,
                         "'. Set both in the points of one axis",
                         field == before ? "." : ", or swap the two axes.");
        }
      }
    }
  }
}

// Reports fields that are set for all runs although an axis overwrites them in every run.
void CheckOverruled(const SweepConfig& sweep, size_t num_of_file, Problems& problems) {
  for (size_t i = 0; i < sweep.set.size(); ++i) {
    const std::string field = FieldOf(sweep.set[i]);
    const auto overrules = [&](const Point& point) {
      return std::ranges::any_of(
          point.set, [&](const std::string& set) { return Undoes(FieldOf(set), field); });
    };
    for (const Axis& axis : sweep.axes) {
      if (axis.points.empty() || !std::ranges::all_of(axis.points, overrules)) continue;
      problems.Add(i < num_of_file ? "set: " : "--set ", sweep.set[i],
                   " has no effect: every point of axis '", axis.name, "' overwrites ", field,
                   ". Leave it out, or change the values of the axis in the file.");
    }
  }
}

void CheckDatasets(const SweepConfig& sweep, Problems& problems) {
  std::vector<std::string> known;
  for (const DatasetToPrepare& dataset : sweep.datasets) {
    if (dataset.name.empty() || dataset.name.find_first_of("/\\\n\t \"") != std::string::npos)
      problems.Add("a dataset cannot be called '", dataset.name,
                   "'. Use a name without spaces, quotes and slashes.");
    if (std::ranges::count(known, dataset.name) > 0)
      problems.Add("two datasets are called '", dataset.name, "'. Rename one of them.");
    if (std::ranges::count(dataset.words, "--out") > 0)
      problems.Add("dataset '", dataset.name, "': --out is set by the sweep. Remove it.");
    known.push_back(dataset.name);
  }
  const auto check = [&](const std::vector<std::string>& overrides) {
    for (const std::string& name : DatasetsOf(overrides))
      if (std::ranges::count(known, name) == 0)
        problems.Add("dataset '", name,
                     "' is used, but there is no dataset entry for it. Add dataset { name: \"",
                     name, "\" prepare: \"...\" }", DidYouMean(name, known));
  };
  check(sweep.set);
  for (const Axis& axis : sweep.axes)
    for (const Point& point : axis.points) check(point.set);
}

// Checks that the labels of the figure's logarithmic x axis are numbers above 0.
void CheckNumbers(const Axis& axis, Problems& problems) {
  for (const Point& point : axis.points) {
    double value = 0;
    const char* end = point.label.data() + point.label.size();
    const auto [parsed, error] = std::from_chars(point.label.data(), end, value);
    if (error != std::errc() || parsed != end || !(value > 0) || !std::isfinite(value))
      problems.Add("summary: x is '", axis.name, "', but '", point.label,
                   "' is not a number above 0. Use such labels, or another axis for x.");
  }
}

void CheckSummary(const SweepConfig& sweep, Problems& problems) {
  std::vector<std::string> names;
  for (const Axis& axis : sweep.axes) names.push_back(axis.name);
  const Summary& summary = sweep.summary;
  std::set<std::string> used;
  for (const auto& [role, name] :
       {std::pair{"over", summary.over}, std::pair{"best_of", summary.best_of},
        std::pair{"x", summary.x}, std::pair{"line", summary.line},
        std::pair{"panel", summary.panel}}) {
    if (name.empty()) continue;
    if (std::ranges::count(names, name) == 0)
      problems.Add("summary: ", role, " is '", name, "', but there is no such axis",
                   DidYouMean(name, names), "\n    Use one of ", Join(names, ", "));
    if (!used.insert(name).second)
      problems.Add("summary: axis '", name, "' has two roles. Give it only one.");
  }
  for (const Axis& axis : sweep.axes)
    if (axis.name == summary.x) CheckNumbers(axis, problems);
  if (summary.x.empty() && !(summary.line.empty() && summary.panel.empty()))
    problems.Add("summary: a figure needs x. Name the axis to plot along the bottom.");
  if (!IsKnownMetric(summary.metric))
    problems.Add("summary: metric '", summary.metric, "' cannot be summarised",
                 DidYouMean(summary.metric, KnownMetrics()), "\n    Use one of ",
                 Join(KnownMetrics(), ", "));
}

}  // namespace

SweepConfig ParseSweep(const std::string& text, const std::string& name_for_errors,
                       const std::vector<std::string>& overrides) {
  proto::Sweep message;
  train::MergeRecipe(text, name_for_errors, message);
  SweepConfig sweep{.text = text,
                    .recipes = {message.recipe().begin(), message.recipe().end()},
                    .set = {message.set().begin(), message.set().end()},
                    .axes = {},
                    .datasets = {},
                    .summary = {}};
  sweep.set.insert(sweep.set.end(), overrides.begin(), overrides.end());
  Problems problems;
  if (sweep.recipes.empty() || std::ranges::count(sweep.recipes, "") > 0)
    problems.Add(
        "there is no recipe. Name the one that the runs share, for example recipe: "
        "\"mine.textproto\".");
  if (message.axis_size() == 0)
    problems.Add(
        "there is no axis. Add one, for example axis { field: \"train.seed\" value: [\"1\", \"2\"] "
        "}.");
  for (const proto::SweepAxis& axis : message.axis()) {
    sweep.axes.push_back(ReadAxis(axis, problems));
    CheckLabels(sweep.axes.back(), problems);
  }
  for (const proto::SweepDataset& dataset : message.dataset())
    sweep.datasets.push_back({.name = dataset.name(), .words = WordsOf(dataset.prepare())});
  const proto::SweepSummary& summary = message.summary();
  if (summary.has_metric()) sweep.summary.metric = summary.metric();
  sweep.summary.over = summary.over();
  sweep.summary.best_of = summary.best_of();
  sweep.summary.x = summary.x();
  sweep.summary.line = summary.line();
  sweep.summary.panel = summary.panel();
  CheckClashes(sweep.axes, problems);
  CheckOverruled(sweep, static_cast<size_t>(message.set_size()), problems);
  CheckDatasets(sweep, problems);
  CheckSummary(sweep, problems);
  CheckNameLength(sweep, problems);
  problems.Throw(name_for_errors);
  return sweep;
}

SweepConfig LoadSweep(const std::filesystem::path& file,
                      const std::vector<std::string>& overrides) {
  SweepConfig sweep = ParseSweep(ReadFile(file, ExitCode::kUsage), file.string(), overrides);
  for (std::filesystem::path& recipe : sweep.recipes)
    if (recipe.is_relative()) recipe = file.parent_path() / recipe;
  return sweep;
}

std::vector<Trial> Grid(const SweepConfig& sweep) {
  std::vector<Trial> trials = {{.name = "", .labels = {}, .overrides = sweep.set}};
  for (const Axis& axis : sweep.axes) {
    std::vector<Trial> longer;
    for (const Trial& trial : trials) {
      for (const Point& point : axis.points) {
        Trial next = trial;
        next.name += Concat(next.name.empty() ? "" : ",", axis.name, "=", point.label);
        next.labels.push_back(point.label);
        next.overrides.insert(next.overrides.end(), point.set.begin(), point.set.end());
        longer.push_back(std::move(next));
      }
    }
    trials = std::move(longer);
  }
  return trials;
}

std::vector<std::string> DatasetsOf(const std::vector<std::string>& overrides) {
  std::vector<std::string> names;
  for (const std::string& override : overrides) {
    const std::string value = ValueOf(override);
    if (value.starts_with(kDataset)) names.push_back(value.substr(std::size(kDataset) - 1));
  }
  return names;
}

std::vector<std::string> WithDatasets(const std::vector<std::string>& overrides,
                                      const std::filesystem::path& folder) {
  std::vector<std::string> replaced;
  for (const std::string& override : overrides) {
    const std::vector<std::string> names = DatasetsOf({override});
    replaced.push_back(names.empty()
                           ? override
                           : Concat(FieldOf(override), "=", (folder / names.front()).string()));
  }
  return replaced;
}

}  // namespace halflife::sweep
