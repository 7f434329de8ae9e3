// Plots as SVG: curves, gaps, logarithmic scales, markers and escaping.
#include "report/plot.h"

#include <gtest/gtest.h>

#include <limits>
#include <regex>

namespace halflife::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

size_t Count(const std::string& text, const std::string& piece) {
  size_t count = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1))
    ++count;
  return count;
}

// Returns the d attribute of the curve's line.
std::string LinePath(const std::string& svg) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(svg, match, std::regex("class=\"line s0\" d=\"([^\"]*)\"")));
  return match[1];
}

Series Ramp(int count) {
  Series points;
  for (int i = 1; i <= count; ++i) points.push_back({1.0 * i, 1.0 * i});
  return points;
}

PlotSpec Spec(Series points) {
  return {.title = "t",
          .note = "",
          .curves = {{.name = "run", .points = std::move(points), .resumes = {}}},
          .rules = {}};
}

TEST(Plot, DrawsEveryPointOfAShortCurve) {
  const std::string svg = RenderPlot(Spec({{1, 1}, {2, 3}, {3, 2}}));
  EXPECT_EQ(LinePath(svg),
            "M56.0,223.9L322.0,22.1L588.0,123.0");  // With 4 % of the range above and below.
  EXPECT_EQ(Count(svg, "class=\"band"), 0u);
  EXPECT_EQ(Count(svg, "lowest to highest"), 0u);
}

TEST(Plot, ALongCurveIsAMeanInABandAndSaysSo) {
  const std::string svg = RenderPlot(Spec(Ramp(5000)));
  EXPECT_EQ(Count(svg, "class=\"band s0\""), 1u);
  EXPECT_EQ(Count(svg, "line: mean of up to 28 points, band: lowest to highest of them"), 1u);
  EXPECT_LT(svg.size(), 40000u);
}

TEST(Plot, ANonFiniteValueIsAGapWithAMark) {
  const std::string svg =
      RenderPlot(Spec({{1, 1}, {2, 2}, {3, kNaN}, {4, 2}, {5, 1}, {6, kNaN}, {7, 3}}));
  EXPECT_EQ(Count(LinePath(svg), "M"), 3u);
  EXPECT_EQ(Count(svg, "class=\"nonfinite\""), 2u);
  EXPECT_EQ(Count(svg, "run: not finite at step 3"), 1u);
  // Step 7 has no neighbours, so no line shows it.
  EXPECT_EQ(Count(svg, "<circle"), 2u);  // There, and at the end of the curve.
}

TEST(Plot, ALogScaleLeavesOutWhatItCannotShow) {
  PlotSpec spec = Spec({{1, 10}, {2, 0}, {3, -1}, {4, 1000}});
  spec.y_scale = Scale::kLog;
  const std::string svg = RenderPlot(spec);
  EXPECT_EQ(Count(LinePath(svg), "M"), 2u);
  EXPECT_EQ(Count(svg, "class=\"nonfinite\""), 0u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Plot, NoPointsNoValuesOnePoint) {
  EXPECT_EQ(Count(RenderPlot(Spec({})), "no finite value yet"), 1u);
  EXPECT_EQ(Count(RenderPlot(Spec({{1, kNaN}})), "no finite value yet"), 1u);
  const std::string one = RenderPlot(Spec({{5, 2}}));
  EXPECT_EQ(Count(one, "<circle cx=\"322.0\" cy=\"123.0\""), 2u);
  EXPECT_EQ(one.find("nan"), std::string::npos);
}

TEST(Plot, MarksResumesAndRules) {
  PlotSpec spec = Spec(Ramp(10));
  spec.curves[0].resumes = {4, 99};  // 99: beyond the trained steps.
  spec.rules = {{20, "clip"}};
  const std::string svg = RenderPlot(spec);
  EXPECT_EQ(Count(svg, "class=\"resume s0\""), 1u);
  EXPECT_EQ(Count(svg, "resumed at step 4"), 1u);
  EXPECT_EQ(Count(svg, ">clip</text>"), 1u);
}

// The cloud has a marker for each point, also with equal x. Only the curve has a line and shows
// numbers at the pointer.
TEST(Plot, ACloudHasOnlyMarkers) {
  PlotSpec spec = Spec({{1, 1}, {2, 2}});
  spec.markers = true;
  spec.curves.push_back({.name = "all runs",
                         .points = {{1, 1}, {1, 4}, {1, kNaN}, {2, 2}, {2, 3}},
                         .resumes = {},
                         .cloud = true});
  const std::string svg = RenderPlot(spec);
  const std::string cloud = svg.substr(svg.find("class=\"marks cloud s0\""));
  EXPECT_EQ(Count(cloud.substr(0, cloud.find("</g>")), "<circle"), 4u);
  EXPECT_EQ(Count(svg, "class=\"line"), 1u);
  EXPECT_EQ(Count(svg, "all runs"), 0u);
  // Its markers are not on the frame, which is at x = 56 and 588.
  EXPECT_EQ(Count(cloud, "cx=\"56.0\""), 0u);
  EXPECT_EQ(Count(cloud, "cx=\"75.7\""), 2u);
}

TEST(Plot, ACurveWithoutALineHasItsMarkers) {
  PlotSpec spec = Spec({{0, 1}, {1, 2}, {2, 3}});
  spec.curves[0].line = false;
  const std::string svg = RenderPlot(spec);
  EXPECT_EQ(Count(svg, "class=\"line"), 0u);
  EXPECT_EQ(Count(svg, "<circle"), 4u);  // The marker of the last point is drawn twice.
}

TEST(Plot, CategoriesAreNamed) {
  PlotSpec spec = Spec({{0, 1}, {1, 2}});
  spec.categories = {"a<b", "gla"};
  const std::string level = RenderPlot(spec);
  EXPECT_EQ(Count(level, "<text class=\"x\" x=\"189.0\" y=\"250.0\">a&lt;b</text>"), 1u);
  EXPECT_EQ(Count(level, "<text class=\"x\" x=\"455.0\" y=\"250.0\">gla</text>"), 1u);
  EXPECT_EQ(Count(level, "\"categories\":[\"a\\u003cb\",\"gla\"]"), 1u);
  EXPECT_EQ(Count(level, "viewBox=\"0 0 600 270\""), 1u);
  // Names that do not fit next to each other are slanted, on a taller chart.
  spec.categories = {std::string(60, 'm'), std::string(60, 'n')};
  const std::string slanted = RenderPlot(spec);
  EXPECT_EQ(Count(slanted, "class=\"slanted\""), 2u);
  EXPECT_EQ(Count(slanted, "viewBox=\"0 0 600 468\""), 1u);
}

TEST(Plot, EscapesNamesInMarkupAndInData) {
  PlotSpec spec = Spec({{1, 1}, {2, kNaN}});
  spec.title = "<b>&";
  spec.curves[0].name = "</script><script>alert(1)</script>";
  const std::string svg = RenderPlot(spec);
  EXPECT_EQ(Count(svg, "</script>"), 1u);  // The end of the data.
  EXPECT_EQ(Count(svg, "alert(1)</"), 0u);
  EXPECT_EQ(Count(svg, "&lt;b&gt;&amp;"), 2u);
}

}  // namespace
}  // namespace halflife::report
