// One chart of the report: inline SVG in a <figure>, with its caption and the numbers that the
// page's script shows under the pointer. Colours and fonts are classes of page_assets.cc.
#pragma once

#include <string>
#include <vector>

#include "report/series.h"

namespace halflife::report {

struct Curve {
  std::string name;  // not yet escaped
  int style = 0;     // colour and marker; the same number is the same run in every chart
  Series points;
  std::vector<double> resumes;  // x of the first point after a resume
  std::vector<double> spread;   // of each point: half of its error bar; empty: none
  bool line = true;             // joins the points; false: markers only
  // A cloud of faint markers without a line, of which several may have the same x. The pointer does
  // not show their numbers.
  bool cloud = false;
};

struct Rule {  // a horizontal line that the curves are read against
  double y = 0;
  std::string label;
};

struct PlotSpec {
  std::string title;  // with the unit
  std::string note;   // what to know to read it; may be empty
  std::string x_name = "step";
  std::vector<double> x_ticks;  // the values that are labelled; empty: round numbers
  // Names of categories, whose x are 0, 1, 2, ...; empty: x is a number. Long names are written
  // aslant, which makes the chart taller than kPlotHeight.
  std::vector<std::string> categories = {};
  Scale x_scale = Scale::kLinear, y_scale = Scale::kLinear;
  bool y_from_zero = false;
  bool markers = false;  // one at each point: few, far apart
  std::vector<Curve> curves;
  std::vector<Rule> rules;
};

// Where a value cannot be drawn the curve has a gap: non-finite values (marked at the top edge),
// and on a logarithmic scale values <= 0. A long curve becomes the mean of neighbours in a band
// from their lowest to their highest. A chart without a point says so.
std::string RenderPlot(const PlotSpec& spec);

// The drawing alone, <svg ...>...</svg>, with `attributes` in its tag; empty where no value can be
// drawn. It is kPlotWidth x kPlotHeight of its own units (taller with long names of categories).
std::string RenderDrawing(const PlotSpec& spec, const std::string& attributes);
inline constexpr double kPlotWidth = 600, kPlotHeight = 270;

// The marker that a style is known by, centred at (x, y): for legends and line ends.
std::string MarkerShape(int style, double x, double y);
constexpr int kNumStyles = 8;

}  // namespace halflife::report
