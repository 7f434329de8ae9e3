// "Did you mean": the known names that a misspelt one is likely to stand for.
//
//   HL_FAIL(ExitCode::kUsage, "'", name, "' is no subcommand", DidYouMean(name, known));
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halflife {

// Insertions, deletions, replacements and swaps of neighbours that lead from one to the other
// (optimal string alignment).
int EditDistance(std::string_view from, std::string_view to);

// At most three, the nearest first: a few edits away, or with `name` as their beginning or as their
// last dotted part.
std::vector<std::string> NearestNames(std::string_view name, const std::vector<std::string>& known);

// "; did you mean 'train' or 'eval'?", or nothing where none is near.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& known);

}  // namespace halflife
