// Plots and tables of evaluation files.
#include "report/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/page.h"
#include "report/plot.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// The format of `halflife eval --out`, in which values that are not finite are null.
constexpr const char* kOfOne = R"({"model": "runs/one/ckpt/step_000000000020", "train_len": 64,
  "rows": [{"method": "window", "length": 256, "perplexity": 5.5},
           {"method": "as_trained", "length": 64, "perplexity": 4.0},
           {"method": "as_trained", "length": 256, "perplexity": null},
           {"method": "window", "length": 64, "perplexity": 4.25}]})";
constexpr const char* kOfTwo = R"({"model": "hf/two", "train_len": 128,
  "rows": [{"method": "as_trained", "length": 128, "perplexity": 3.0, "accuracy": 0.25}]})";

std::vector<std::string> NamesOf(const PlotSpec& plot) {
  std::vector<std::string> names;
  for (const Curve& curve : plot.curves) names.push_back(curve.name);
  return names;
}

TEST(Evaluation, CurvesOfSeveralModelsAreInOnePicture) {
  const std::vector<Evaluation> both = {ParseEvaluation(kOfOne, "1.json"),
                                        ParseEvaluation(kOfTwo, "2.json")};
  const std::vector<PlotSpec> plots = ChartsByLength(both);
  ASSERT_EQ(plots.size(), 2u);  // Perplexity, and accuracy, which only one of them has.
  EXPECT_THAT(NamesOf(plots[0]), ElementsAre("one, window", "one, as_trained", "two, as_trained"));
  EXPECT_EQ(NamesOf(plots[1]), NamesOf(plots[0]));
  const Series& window = plots[0].curves[0].points;  // In the order of lengths.
  ASSERT_EQ(window.size(), 2u);
  EXPECT_EQ(window[0].x, 64);
  EXPECT_EQ(window[0].y, 4.25);
  EXPECT_EQ(window[1].y, 5.5);
  EXPECT_EQ(plots[0].curves[1].points.size(), 1u);  // Without values that are not finite.
  EXPECT_TRUE(plots[1].curves[0].points.empty());
  EXPECT_EQ(plots[1].curves[2].points.at(0).y, 0.25);
  EXPECT_THAT(plots[0].x_ticks, ElementsAre(64, 128, 256));
  EXPECT_EQ(plots[0].note, "trained on rows of 64, 128");
  EXPECT_THAT(RenderFigure(plots), HasSubstr(">one, window</text>"));
}

// A curve's name leaves out what all curves share, and names are unique.
TEST(Evaluation, CurvesAreNamedByTheirDifferences) {
  const Evaluation one = ParseEvaluation(kOfOne, "1.json");
  EXPECT_THAT(NamesOf(ChartsByLength({one})[0]), ElementsAre("window", "as_trained"));
  const Evaluation two = ParseEvaluation(kOfTwo, "2.json");
  EXPECT_THAT(NamesOf(ChartsByLength({two})[0]), ElementsAre("two"));
  const Evaluation again = ParseEvaluation(kOfTwo, "3.json");
  EXPECT_THAT(NamesOf(ChartsByLength({two, again})[0]),
              ElementsAre("2.json, as_trained", "3.json, as_trained"));
}

TEST(Evaluation, ThePageHasTheCurvesAndTheirNumbers) {
  const std::string page = RenderPage(
      {.evaluations = {ParseEvaluation(kOfOne, "1.json"), ParseEvaluation(kOfTwo, "2.json")}},
      "now");
  EXPECT_THAT(page, HasSubstr("<title>2 evaluations"));
  EXPECT_THAT(page, HasSubstr("Perplexity by tokens of a row"));
  EXPECT_THAT(page, HasSubstr("one, window</td><td>4.25</td><td>–</td>"
                              "<td>5.5</td>"));
  EXPECT_THAT(page, Not(HasSubstr("<h2>Runs</h2>")));
  const Evaluation begun = ParseEvaluation(R"({"model": "m", "train_len": 8, "rows": []})", "b");
  EXPECT_THAT(RenderPage({.evaluations = {begun}}, "now"), HasSubstr("No row was scored yet"));
  RunRecord run;
  run.name = "trained";
  EXPECT_THAT(RenderPage({.runs = {run}, .evaluations = {begun}}, "now"),
              HasSubstr("<title>trained"));
}

// Needles at several depths are one point per length. A length without one of the depths has no
// point.
TEST(Evaluation, DepthsAreOneCurve) {
  const Evaluation found = ParseEvaluation(R"({"model": "m", "train_len": 8, "rows": [
    {"method": "as_trained", "length": 16, "depth": 0, "retrieval_accuracy": 0.25},
    {"method": "as_trained", "length": 16, "depth": 1, "retrieval_accuracy": 0.75},
    {"method": "as_trained", "length": 32, "depth": 0, "retrieval_accuracy": 0.0},
    {"method": "as_trained", "length": 32, "depth": 1, "retrieval_accuracy": 0.0},
    {"method": "as_trained", "length": 64, "depth": 0, "retrieval_accuracy": 1.0}]})",
                                           "n.json");
  const std::vector<PlotSpec> plots = ChartsByLength({found});
  ASSERT_EQ(plots.size(), 1u);
  EXPECT_THAT(plots[0].title, HasSubstr("mean over depths"));
  ASSERT_EQ(plots[0].curves.at(0).points.size(), 2u);
  EXPECT_EQ(plots[0].curves[0].points[0].y, 0.5);
  EXPECT_EQ(plots[0].curves[0].points[1].y, 0);
}

TEST(Evaluation, SaysWhatIsInvalid) {
  for (const char* text : {"no json", "[]", R"({"model": "m", "train_len": 1})",
                           R"({"model": "m", "train_len": 1, "rows": [{"length": 3}]})"})
    EXPECT_HL_ERROR(ParseEvaluation(text, "x.json"), ExitCode::kUsage,
                    "x.json is not an evaluation by length", "halflife eval --lengths");
  const test::TempDir dir;
  EXPECT_HL_ERROR(ReadEvaluation(dir / "none.json"), ExitCode::kUsage, "none.json");
}

}  // namespace
}  // namespace halflife::report
