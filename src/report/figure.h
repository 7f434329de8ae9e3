// A picture of several plots with one legend, as a self-contained SVG file.
//
//   AtomicWriteFile("figure.svg", RenderFigure(plots), ExitCode::kEnvironment);
#pragma once

#include <string>
#include <vector>

#include "report/plot.h"

namespace halflife::report {

// Draws two plots per row, each below its title. The legend shows the curves of the first plot,
// whose note is at the bottom. Without plots, the picture shows "no value yet". It uses the
// reader's light or dark colours.
std::string RenderFigure(const std::vector<PlotSpec>& plots);

// Returns a style's marker on a short line, for legends.
std::string StyleKey(int style);

}  // namespace halflife::report
