#include "core/nearest.h"

#include <algorithm>

namespace halflife {
namespace {

constexpr size_t kMaxNames = 3;

std::string_view LastPart(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// Returns the most edits that still look like a typing error: a third of the letters, at least one.
int MostEdits(std::string_view name) { return std::max(1, static_cast<int>(name.size()) / 3); }

// Returns a distance, smaller for likelier names. A distance above MostEdits means that `known` was
// not intended.
int Distance(std::string_view name, std::string_view known) {
  if (!name.empty() && (known.starts_with(name) || LastPart(known) == name)) return 1;
  return EditDistance(name, known);
}

}  // namespace

int EditDistance(std::string_view from, std::string_view to) {
  // Rows i - 2, i - 1 and i of the table: edits from from[:i] to to[:j].
  std::vector<int> before(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= from.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= to.size(); ++j) {
      const int replaced = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[to.size()];
}

std::vector<std::string> NearestNames(std::string_view name,
                                      const std::vector<std::string>& known) {
  std::vector<std::pair<int, std::string>> near;
  for (const std::string& candidate : known) {
    const int distance = Distance(name, candidate);
    if (distance <= MostEdits(name)) near.emplace_back(distance, candidate);
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> names;
  for (const auto& [distance, candidate] : near) {
    // If there is a near name, suggestions that are much farther away only distract.
    if (names.size() < kMaxNames && distance <= near.front().first + 1) names.push_back(candidate);
  }
  return names;
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& known) {
  const std::vector<std::string> names = NearestNames(name, known);
  if (names.empty()) return "";
  std::string text = "; did you mean ";
  for (size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "'" : i + 1 == names.size() ? " or '" : ", '";
    text += names[i] + "'";
  }
  return text + "?";
}

}  // namespace halflife
