// The report's style sheet and script, which are inlined into the page.
#pragma once

namespace halflife::report {

// Colours, lines and fonts of drawings. Also used in separate SVG files.
extern const char* const kPlotStyle;
// The rest of the page's style sheet.
extern const char* const kPageStyle;
// Shows the numbers under the pointer. The page contains everything else without it.
extern const char* const kPageScript;

}  // namespace halflife::report
