// The summary of a sweep: best values, means over seeds, tables and plots.
#include "sweep/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace halflife::sweep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// mixer x dim x lr x seed, summarised as in Figure 1 of the ReBased paper.
SweepConfig Sweep() {
  return ParseSweep(R"(recipe: "r"
    axis { name: "mixer" point { label: "a" set: "m=a" } point { label: "b" set: "m=b" } }
    axis { field: "model_dim" value: ["32", "64"] }
    axis { field: "lr" value: ["1e-3", "1e-2"] }
    axis { field: "seed" value: ["1", "2"] }
    summary { metric: "val_accuracy" over: "seed" best_of: "lr" x: "model_dim" line: "mixer" })",
                    "s.textproto", {});
}

report::RunRecord RunWith(const std::vector<double>& accuracies) {
  report::RunRecord run;
  for (size_t i = 0; i < accuracies.size(); ++i)
    run.metrics["val_accuracy"].push_back({10.0 * static_cast<double>(i + 1), accuracies[i]});
  return run;
}

// Returns results in which the best value of run i of the grid is `best(i)`, or none if it is NaN.
std::vector<TrialResult> ResultsWith(const SweepConfig& sweep,
                                     const std::function<double(const Trial&)>& best) {
  std::vector<TrialResult> results;
  for (const Trial& trial : Grid(sweep)) {
    const report::RunRecord run = RunWith({0.01, best(trial), 0.0});
    results.push_back(
        ResultOf(sweep.summary, trial, {.state = TrialState::kFinished, .attempts = 1}, &run));
  }
  return results;
}

TEST(Results, ARunCountsWithItsBestValueAndTheStepOfIt) {
  const report::RunRecord run = RunWith({0.2, 0.9, NAN, 0.9, 0.5});
  const TrialResult result = ResultOf(Sweep().summary, {}, {}, &run);
  ASSERT_TRUE(result.best.has_value());
  EXPECT_EQ(result.best->y, 0.9);
  EXPECT_EQ(result.best->x, 20);
  EXPECT_FALSE(ResultOf(Sweep().summary, {}, {}, nullptr).best.has_value());
}

TEST(Results, TheBestRateIsThatOfTheBestMeanNotOfTheBestRun) {
  const SweepConfig sweep = Sweep();
  // 1e-2 has the best run of all, 1e-3 has the better mean.
  const auto value = [](const Trial& trial) {
    const bool high_rate = trial.labels[2] == "1e-2", first = trial.labels[3] == "1";
    return high_rate ? (first ? 1.0 : 0.2) : (first ? 0.7 : 0.8);
  };
  const std::vector<Group> groups = SumUp(sweep, ResultsWith(sweep, value));
  ASSERT_EQ(groups.size(), 4u);
  for (const Group& group : groups) {
    EXPECT_EQ(group.best_label, "1e-3");
    EXPECT_EQ(group.num_runs, 2);
    EXPECT_DOUBLE_EQ(group.mean, 0.75);
    EXPECT_NEAR(group.deviation, 0.1 / std::sqrt(2.0), 1e-15);  // The sample's deviation: n - 1.
    EXPECT_EQ(group.low, 0.7);
    EXPECT_EQ(group.high, 0.8);
  }
  EXPECT_THAT(GroupAxes(sweep), ElementsAre("mixer", "model_dim"));
  EXPECT_THAT(groups[3].labels, ElementsAre("b", "64"));
}

TEST(Results, ALossIsBestWhereItIsLowest) {
  SweepConfig sweep = Sweep();
  sweep.summary.metric = "val_loss";
  report::RunRecord run;
  run.metrics["val_loss"] = {{10, 3}, {20, 1}, {30, 2}};
  EXPECT_EQ(ResultOf(sweep.summary, {}, {}, &run).best->y, 1);
}

TEST(Results, RunsWithoutAValueAreLeftOutAndCounted) {
  const SweepConfig sweep = Sweep();
  std::vector<TrialResult> results =
      ResultsWith(sweep, [](const Trial& trial) { return trial.labels[2] == "1e-3" ? 0.5 : 0.4; });
  results[0].best.reset();                                 // a, 32, 1e-3, seed 1.
  for (size_t i = 4; i < 8; ++i) results[i].best.reset();  // a, 64.
  const std::vector<Group> groups = SumUp(sweep, results);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].num_runs, 1);
  EXPECT_EQ(groups[0].deviation, 0);
  EXPECT_THAT(
      report::Csv(SummaryTable(sweep, groups, Digits::kAll)),
      HasSubstr("mixer,model_dim,best_lr,val_accuracy_mean,val_accuracy_std,"
                "val_accuracy_low,val_accuracy_high,runs\na,32,1e-3,0.5,0,0.5,0.5,1\nb,32,"));
}

TEST(Results, TheTableOfRunsKeepsCommasOfMessagesApart) {
  const SweepConfig sweep = Sweep();
  const Trial trial = Grid(sweep)[1];
  const TrialStatus failed = {.state = TrialState::kFailed,
                              .exit_code = 73,
                              .attempts = 2,
                              .seconds = 1.25,
                              .message = "no \"finite\" loss, sorry"};
  const std::string csv =
      report::Csv(ResultsTable(sweep, {ResultOf(sweep.summary, trial, failed, nullptr)}));
  EXPECT_THAT(csv, HasSubstr("\"mixer=a,model_dim=32,lr=1e-3,seed=2\",a,32,1e-3,2,failed,73,2,1.2,"
                             ",0,,,,\"no \"\"finite\"\" loss, sorry\"\n"));
}

TEST(Results, PeopleReadFourDigits) {
  const SweepConfig sweep = Sweep();
  std::vector<TrialResult> results = ResultsWith(sweep, [](const Trial&) { return 1.0 / 3; });
  results[0].status.seconds = 75.25;
  results[0].tokens_per_s = 123456.7;
  results[1].best.reset();
  results[1].status = {
      .state = TrialState::kFailed, .exit_code = 73, .attempts = 2, .message = "not finite"};
  const report::Table table = RunsTable(sweep, results);
  EXPECT_THAT(table.header, ElementsAre("run", "mixer", "model_dim", "lr", "seed", "status",
                                        "val_accuracy", "at step", "tokens/s", "time"));
  EXPECT_THAT(table.rows[0], ElementsAre("mixer=a,model_dim=32,lr=1e-3,seed=1", "a", "32", "1e-3",
                                         "1", "finished", "0.3333", "20", "123.5k", "1 min 15 s"));
  EXPECT_THAT(table.rows[1], ElementsAre("mixer=a,model_dim=32,lr=1e-3,seed=2", "a", "32", "1e-3",
                                         "2", "failed", "–", "–", "–", testing::_));
  const report::Table failures = FailuresTable(results);
  ASSERT_EQ(failures.rows.size(), 1u);
  EXPECT_THAT(failures.rows[0],
              ElementsAre("mixer=a,model_dim=32,lr=1e-3,seed=2", "73", "2", "not finite"));
  EXPECT_THAT(SummaryTable(sweep, SumUp(sweep, results), Digits::kFour).rows[1],
              ElementsAre("a", "64", "1e-2", "0.3333", "0", "0.3333", "0.3333", "2"));
}

// lr spans a decade, model_dim does not, and mixers are not numbers.
TEST(Results, TheMetricIsDrawnOverEachAxis) {
  const SweepConfig sweep = Sweep();
  std::vector<TrialResult> results = ResultsWith(sweep, [](const Trial& trial) {
    return (trial.labels[0] == "a" ? 0.5 : 0.25) + (trial.labels[2] == "1e-2" ? 0.25 : 0);
  });
  results[15].best.reset();
  const std::vector<report::PlotSpec> plots = PlotsByAxis(sweep, results);
  ASSERT_EQ(plots.size(), 4u);
  EXPECT_EQ(plots[0].title, "val_accuracy over mixer");
  EXPECT_THAT(plots[0].categories, ElementsAre("a", "b"));
  EXPECT_EQ(plots[0].x_scale, report::Scale::kLinear);
  EXPECT_TRUE(plots[1].categories.empty());
  EXPECT_EQ(plots[1].x_scale, report::Scale::kLinear);
  EXPECT_EQ(plots[2].x_scale, report::Scale::kLog);
  EXPECT_THAT(plots[2].x_ticks, ElementsAre(1e-3, 1e-2));
  for (const report::PlotSpec& plot : plots) {
    ASSERT_EQ(plot.curves.size(), 2u);
    EXPECT_TRUE(plot.curves[0].cloud);
    EXPECT_EQ(plot.curves[0].points.size(), 15u);  // One run has no value.
    EXPECT_EQ(plot.curves[1].line, plot.categories.empty());
  }
  const report::Series& best_of_mixers = plots[0].curves[1].points;
  ASSERT_EQ(best_of_mixers.size(), 2u);
  EXPECT_EQ(best_of_mixers[0].y, 0.75);
  EXPECT_EQ(best_of_mixers[1].y, 0.5);
  const report::Series& best_of_rates = plots[2].curves[1].points;
  EXPECT_EQ(best_of_rates[0].x, 1e-3);
  EXPECT_EQ(best_of_rates[0].y, 0.5);
  EXPECT_EQ(best_of_rates[1].y, 0.75);
}

// The lowest loss is the best. A loss that spans decades is drawn on a logarithmic scale.
TEST(Results, ALossOverAnAxisIsTheLowest) {
  SweepConfig sweep = ParseSweep(
      R"(recipe: "r" axis { field: "lr" value: ["3e-3", "1e-3"] }
         axis { field: "seed" value: ["1", "2"] } axis { field: "one" value: ["1"] })",
      "s.textproto", {});
  std::vector<TrialResult> results;
  for (const Trial& trial : Grid(sweep)) {
    results.push_back({.trial = trial});
    results.back().best = report::Point{10, trial.labels[1] == "1" ? 2.0 : 500.0};
  }
  const std::vector<report::PlotSpec> plots = PlotsByAxis(sweep, results);
  ASSERT_EQ(plots.size(), 2u);  // An axis with one point has no plot.
  EXPECT_EQ(plots[0].y_scale, report::Scale::kLog);
  const report::Series& best = plots[0].curves[1].points;
  EXPECT_EQ(best[0].x, 1e-3);  // Ascending for any order of the values.
  EXPECT_EQ(best[0].y, 2);
}

TEST(Results, TheBestRunsKeepTheOrderOfTheGrid) {
  const SweepConfig sweep = Sweep();
  std::vector<TrialResult> results(5);
  const double values[] = {0.1, 0.9, NAN, 0.5, 0.7};
  for (size_t i = 0; i < results.size(); ++i) {
    results[i].steps = 10;
    if (!std::isnan(values[i])) results[i].best = report::Point{10, values[i]};
  }
  EXPECT_THAT(BestRuns(sweep, results, 3), ElementsAre(1, 3, 4));
  EXPECT_THAT(BestRuns(sweep, results, 9), ElementsAre(0, 1, 2, 3, 4));
  // Without the run that has no value.
  EXPECT_THAT(BestRuns(sweep, results, 4), ElementsAre(0, 1, 3, 4));
  results[1].steps = 0;
  EXPECT_THAT(BestRuns(sweep, results, 2), ElementsAre(3, 4));
}

TEST(Results, TheFigureHasALineAMixerWithItsDeviation) {
  SweepConfig sweep = Sweep();
  const std::vector<TrialResult> results =
      ResultsWith(sweep, [](const Trial& trial) { return trial.labels[3] == "1" ? 0.25 : 0.75; });
  const std::vector<report::PlotSpec> plots = Figure(sweep, SumUp(sweep, results));
  ASSERT_EQ(plots.size(), 1u);
  EXPECT_THAT(plots[0].x_ticks, ElementsAre(32, 64));
  ASSERT_EQ(plots[0].curves.size(), 2u);
  EXPECT_EQ(plots[0].curves[1].name, "b");
  EXPECT_EQ(plots[0].curves[1].points[1].x, 64);
  EXPECT_EQ(plots[0].curves[1].points[1].y, 0.5);
  EXPECT_THAT(plots[0].curves[1].spread,
              ElementsAre(testing::DoubleNear(0.5 / std::sqrt(2.0), 1e-15),
                          testing::DoubleNear(0.5 / std::sqrt(2.0), 1e-15)));
  // Lines go from left to right, whatever the order of the axis's values.
  std::vector<Group> groups = SumUp(sweep, results);
  std::ranges::reverse(groups);
  EXPECT_EQ(Figure(sweep, groups)[0].curves[1].points[1].x, 64);
  sweep.summary.line.clear();
  sweep.summary.panel = "mixer";
  const std::vector<report::PlotSpec> panels = Figure(sweep, SumUp(sweep, results));
  ASSERT_EQ(panels.size(), 2u);
  EXPECT_EQ(panels[1].title, "val_accuracy, mixer b");
  EXPECT_EQ(panels[1].curves.size(), 1u);
  sweep.summary.x.clear();
  EXPECT_TRUE(Figure(sweep, SumUp(sweep, results)).empty());
}

}  // namespace
}  // namespace halflife::sweep
