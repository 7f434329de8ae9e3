// The differences that are allowed between a run's model and the weights that it starts from.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace halflife::train {

// How to initialise vocabulary rows that the source does not have.
enum class RowGrowth { kRefuse, kMean, kInit };

struct WarmStartRules {
  // Pairs of a regular expression (ECMAScript) and a replacement with $1... The first expression
  // that matches the whole name of a source tensor renames it.
  std::vector<std::pair<std::string, std::string>> renames;
  // Globs of names of this model that may keep their initial values.
  std::vector<std::string> allow_missing;
  // Globs of renamed source names that may remain unused.
  std::vector<std::string> allow_unexpected;
  // Applies to embeddings.weight and lm_head.weight.
  RowGrowth new_rows = RowGrowth::kRefuse;
};

}  // namespace halflife::train
