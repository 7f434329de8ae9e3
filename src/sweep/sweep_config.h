// A sweep as plain structs: a recipe, axes whose product are the runs, datasets to prepare, and the
// summary of the results. The file format is defined in proto/halflife/sweep.proto.
//
//   const SweepConfig sweep = LoadSweep("launch/sweeps/mqar_figure_1.textproto", {});
//   for (const Trial& trial : Grid(sweep)) Print(trial.name);  // "mixer=based,model_dim=64,seed=1"
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/run_record.h"

namespace halflife::sweep {

// Returns the metrics that measure how well a run did.
std::vector<std::string> KnownMetrics();
bool IsKnownMetric(const std::string& name);
bool HigherIsBetter(const std::string& name);

// Returns the best value of the run and the first step that reached it, or nullopt if there is no
// finite value. For speeds, returns the median and the last step.
std::optional<report::Point> BestOf(const report::RunRecord& run, const std::string& metric);

struct Point {
  std::string label;             // Used in tables, file names and figures.
  std::vector<std::string> set;  // Assignments such as "optimizer.lr=1e-3", applied in order.
};

struct Axis {
  std::string name;
  std::vector<Point> points;
};

struct DatasetToPrepare {
  std::string name;
  std::vector<std::string> words;  // Arguments of `halflife prepare`, without --out.
};

struct Summary {
  std::string metric = "val_loss";
  std::string over, best_of;   // Names of axes. Empty: none.
  std::string x, line, panel;  // Axes of the figure. Without x, there is no figure.
};

struct SweepConfig {
  std::string text;  // Text of the sweep's file.
  // Merged in order: later recipes override fields of earlier ones.
  std::vector<std::filesystem::path> recipes;
  std::vector<std::string> set;  // Set in every run, before the axes' assignments.
  std::vector<Axis> axes;
  std::vector<DatasetToPrepare> datasets;
  Summary summary;
};

// One run of the sweep.
struct Trial {
  std::string name;                    // "lr=1e-3,seed=1", which is also the name of its folder.
  std::vector<std::string> labels;     // One label per axis.
  std::vector<std::string> overrides;  // Contains `dataset:NAME` as it was written.
};

// Reads a sweep and appends `overrides` to its own assignments. Throws kUsage for an unknown field,
// with line and column. Also throws kUsage with a list of all other problems:
// - axes that set the same field or have the same name,
// - an axis without points or with two equal labels,
// - a field that is set for all runs but overwritten by every point of an axis,
// - a dataset that is used but not defined, or that has an invalid name,
// - a summary over an axis that does not exist.
SweepConfig LoadSweep(const std::filesystem::path& file, const std::vector<std::string>& overrides);
SweepConfig ParseSweep(const std::string& text, const std::string& name_for_errors,
                       const std::vector<std::string>& overrides);

// Returns all runs. The last axis changes fastest.
std::vector<Trial> Grid(const SweepConfig& sweep);

// Returns the names of the datasets that these overrides use: "data.path=dataset:train" -> "train".
std::vector<std::string> DatasetsOf(const std::vector<std::string>& overrides);
// Returns the overrides with `dataset:NAME` replaced by `folder`/NAME.
std::vector<std::string> WithDatasets(const std::vector<std::string>& overrides,
                                      const std::filesystem::path& folder);

}  // namespace halflife::sweep
