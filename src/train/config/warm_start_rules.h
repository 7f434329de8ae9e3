// What may differ between a run's model and the weights that it starts from.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace halflife::train {

// For rows of a vocabulary that the source does not have.
enum class RowGrowth { kRefuse, kMean, kInit };

struct WarmStartRules {
  // Of the source's names: the first regular expression (ECMAScript) that matches all of a name
  // renames it, with $1...
  std::vector<std::pair<std::string, std::string>> renames;
  std::vector<std::string> allow_missing;     // globs of our names that keep their initial value
  std::vector<std::string> allow_unexpected;  // globs of (renamed) source names that are not used
  RowGrowth new_rows = RowGrowth::kRefuse;    // of embeddings.weight and lm_head.weight
};

}  // namespace halflife::train
