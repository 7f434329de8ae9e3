// "Did you mean": finds the known names that a misspelt name probably means.
//
//   HL_FAIL(ExitCode::kUsage, "'", name, "' is no subcommand", DidYouMean(name, known));
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halflife {

// Returns the number of insertions, deletions, replacements and swaps of neighbours that map one
// string to the other (optimal string alignment).
int EditDistance(std::string_view from, std::string_view to);

// Returns at most three names, the nearest first. A known name qualifies if it is a few edits away,
// starts with `name`, or has `name` as its last dotted part.
std::vector<std::string> NearestNames(std::string_view name, const std::vector<std::string>& known);

// Returns "; did you mean 'train' or 'eval'?", or an empty string if no known name is near.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& known);

}  // namespace halflife
