// A picture: plots side by side with one legend, as an SVG file that stands alone.
//
//   AtomicWriteFile("figure.svg", RenderFigure(plots), ExitCode::kEnvironment);
#pragma once

#include <string>
#include <vector>

#include "report/plot.h"

namespace halflife::report {

// Two plots a row, each below its title; the legend is the first plot's curves, and its note stands
// at the foot; without plots there is "no value yet". Follows the reader's light or dark colours.
std::string RenderFigure(const std::vector<PlotSpec>& plots);

// A style's marker on a piece of its line, for legends.
std::string StyleKey(int style);

}  // namespace halflife::report
