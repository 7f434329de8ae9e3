// The report's style sheet and script, inlined into the page.
#pragma once

namespace halflife::report {

extern const char* const kPageStyle;
// Shows the numbers under the pointer; all content is there without it.
extern const char* const kPageScript;

}  // namespace halflife::report
