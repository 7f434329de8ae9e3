// HTML helpers of the report. All text from files must go through Escape, and paths in links
// through UrlOfPath.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace halflife::report {

// Escapes text for HTML. The result can be used as text and in attributes in double quotes. Bytes
// that are not UTF-8 and control characters become U+FFFD.
std::string Escape(std::string_view text);

// Returns a path as a relative URL for an attribute in double quotes. Every byte that is not a
// letter, a digit or one of -_.~/=,+@ is percent-encoded.
std::string UrlOfPath(std::string_view path);

// Returns JSON that is safe inside <script>.
std::string ScriptJson(const nlohmann::ordered_json& json);

// The report's style sheet and script, which are inlined into the page: colours, lines and fonts of
// drawings. Also used in separate SVG files.
extern const char* const kPlotStyle;
// The rest of the page's style sheet.
extern const char* const kPageStyle;
// Shows the numbers under the pointer. The page contains everything else without it.
extern const char* const kPageScript;

}  // namespace halflife::report
