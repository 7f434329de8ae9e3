// Figures: one file with several plots and one legend.
#include "report/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace halflife::report {
namespace {

using testing::HasSubstr;
using testing::Not;

PlotSpec Plot(const std::string& title) {
  return {
      .title = title,
      .note = "mean & deviation",
      .x_name = "model_dim",
      .x_ticks = {32, 64},
      .x_scale = Scale::kLog,
      .markers = true,
      .curves = {{.name = "a<b", .style = 0, .points = {{32, 0.5}, {64, 1}}, .spread = {0.1, 0}},
                 {.name = "other", .style = 9, .points = {{32, 0.25}}}},
      .rules = {}};
}

int Count(const std::string& text, const std::string& piece) {
  int count = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1))
    ++count;
  return count;
}

TEST(Figure, IsCompleteWithOneLegendForAllPlots) {
  const std::string svg = RenderFigure({Plot("first"), Plot("second"), Plot("third")});
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme"));
  EXPECT_EQ(Count(svg, ">a&lt;b</text>"), 1);
  for (const char* title : {">first</text>", ">second</text>", ">third</text>"})
    EXPECT_EQ(Count(svg, title), 1);
  EXPECT_THAT(svg, HasSubstr(">mean &amp; deviation</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_EQ(Count(svg, "<svg "), Count(svg, "</svg>"));
}

TEST(Figure, APlotWithoutValuesSaysSo) {
  PlotSpec empty = Plot("empty");
  for (Curve& curve : empty.curves) curve.points.clear();
  EXPECT_THAT(RenderFigure({Plot("first"), empty}), HasSubstr("no value yet"));
}

// As for an evaluation without finite values.
TEST(Figure, WithoutPlotsThereIsStillAPicture) {
  const std::string svg = RenderFigure({});
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(Count(svg, "no value yet"), 1);
}

// Ticks are at the requested positions, and points with a deviation have error bars.
TEST(Figure, TicksAndErrorBars) {
  const std::string drawing = RenderDrawing(Plot("first"), "id=\"x\"");
  EXPECT_THAT(drawing, HasSubstr("<svg id=\"x\" "));
  EXPECT_EQ(Count(drawing, "class=\"x\""), 2);
  EXPECT_THAT(drawing, HasSubstr(">32</text>"));
  EXPECT_THAT(drawing, HasSubstr(">64</text>"));
  EXPECT_EQ(Count(drawing, "V"), 1);  // One vertical line: the other deviation is 0.
}

}  // namespace
}  // namespace halflife::report
