// The report's style sheet and script, inlined into the page.
#pragma once

namespace halflife::report {

// Colours, lines and letters of drawings: for an SVG file of its own, too.
extern const char* const kPlotStyle;
// The rest of the page's.
extern const char* const kPageStyle;
// Shows the numbers under the pointer; all content is there without it.
extern const char* const kPageScript;

}  // namespace halflife::report
