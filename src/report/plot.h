// A chart of the report: inline SVG in a <figure>, with its caption and the numbers that the page's
// script shows under the pointer. Colours and fonts are classes in html.cc.
#pragma once

#include <string>
#include <vector>

#include "report/axis.h"

namespace halflife::report {

struct Curve {
  std::string name;  // Not escaped.
  int style = 0;     // Colour and marker. The same number means the same run in every chart.
  Series points;
  std::vector<double> resumes;  // x of the first point after each resume.
  std::vector<double> spread;   // Half the height of each point's error bar. Empty: no bars.
  bool line = true;             // Joins the points with a line. False: markers only.
  // Draws faint markers without a line; several may have the same x. The pointer does not show
  // their numbers.
  bool cloud = false;
};

struct Rule {  // A horizontal reference line.
  double y = 0;
  std::string label;
};

struct PlotSpec {
  std::string title;  // Includes the unit.
  std::string note;   // Explains how to read the plot. May be empty.
  std::string x_name = "step";
  std::vector<double> x_ticks;  // The labelled values. Empty: round numbers.
  // Names of categories, whose x are 0, 1, 2, ... Empty: x is a number. Long names are slanted,
  // which makes the chart taller than kPlotHeight.
  std::vector<std::string> categories = {};
  Scale x_scale = Scale::kLinear, y_scale = Scale::kLinear;
  bool y_from_zero = false;
  bool markers = false;  // Marks every point; for few, distant points.
  std::vector<Curve> curves;
  std::vector<Rule> rules;
};

// Draws a plot. A curve has gaps at non-finite values (marked at the top edge) and, on a
// logarithmic scale, at values <= 0. A long curve is drawn as the mean of neighbouring points, in a
// band from their lowest to their highest value. A chart without points says so.
std::string RenderPlot(const PlotSpec& spec);

// Returns only the drawing, <svg ...>...</svg>, with `attributes` in its tag. Empty if no value can
// be drawn. Its size is kPlotWidth x kPlotHeight in its own units (taller with long category
// names).
std::string RenderDrawing(const PlotSpec& spec, const std::string& attributes);
inline constexpr double kPlotWidth = 600, kPlotHeight = 270;

// Returns the marker of a style, centred at (x, y), for legends and line ends.
std::string MarkerShape(int style, double x, double y);
constexpr int kNumStyles = 8;

// A picture of several plots with one legend, as a self-contained SVG file.
//
//   AtomicWriteFile("figure.svg", RenderFigure(plots), ExitCode::kEnvironment);
//
// Draws two plots per row, each below its title. The legend shows the curves of the first plot,
// whose note is at the bottom. Without plots, the picture shows "no value yet". It uses the
// reader's light or dark colours.
std::string RenderFigure(const std::vector<PlotSpec>& plots);

// Returns a style's marker on a short line, for legends.
std::string StyleKey(int style);

}  // namespace halflife::report
