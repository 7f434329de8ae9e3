// What a sweep is, as plain structs: a recipe, axes whose product are its runs, datasets to make,
// and how the results are summed up. The file's form is proto/halflife/sweep.proto.
//
//   const SweepConfig sweep = LoadSweep("launch/sweeps/mqar_figure_1.textproto", {});
//   for (const Trial& trial : Grid(sweep)) Print(trial.name);  // "mixer=based,model_dim=64,seed=1"
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace halflife::sweep {

struct Point {
  std::string label;             // in tables, file names and figures
  std::vector<std::string> set;  // "optimizer.lr=1e-3", in order
};

struct Axis {
  std::string name;
  std::vector<Point> points;
};

struct DatasetToPrepare {
  std::string name;
  std::vector<std::string> words;  // of `halflife prepare`, without --out
};

struct Summary {
  std::string metric = "val_loss";
  std::string over, best_of;   // names of axes; empty: none
  std::string x, line, panel;  // the figure's; without x there is none
};

struct SweepConfig {
  std::string text;  // of its file
  // Merged in order: a later recipe changes fields of the earlier ones.
  std::vector<std::filesystem::path> recipes;
  std::vector<std::string> set;  // of every run, before the axes'
  std::vector<Axis> axes;
  std::vector<DatasetToPrepare> datasets;
  Summary summary;
};

// A run of the sweep.
struct Trial {
  std::string name;                    // "lr=1e-3,seed=1": a folder's name
  std::vector<std::string> labels;     // one for each axis
  std::vector<std::string> overrides;  // `dataset:NAME` as it was written
};

// Reads the file and adds `overrides` to its own. Error kUsage: a field that is none, with line and
// column; and all at once what makes no sense: axes that set the same field or have one name, an
// axis without points or with two of one label, a field set for all runs that an axis sets anew in
// every one, a dataset that nothing makes or names, a summary over an axis that is not there.
SweepConfig LoadSweep(const std::filesystem::path& file, const std::vector<std::string>& overrides);
SweepConfig ParseSweep(const std::string& text, const std::string& name_for_errors,
                       const std::vector<std::string>& overrides);

// All runs, the last axis changing fastest.
std::vector<Trial> Grid(const SweepConfig& sweep);

// The names of the datasets that these overrides ask for: "data.path=dataset:train" -> "train".
std::vector<std::string> DatasetsOf(const std::vector<std::string>& overrides);
// The overrides with `dataset:NAME` replaced by `folder`/NAME.
std::vector<std::string> WithDatasets(const std::vector<std::string>& overrides,
                                      const std::filesystem::path& folder);

}  // namespace halflife::sweep
