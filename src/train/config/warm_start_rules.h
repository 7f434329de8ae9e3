// What may differ between a run's model and the weights that it starts from.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace halflife::train {

// What rows of a vocabulary that the source does not have begin with.
enum class RowGrowth { kRefuse, kMean, kInit };

struct WarmStartRules {
  // The first regular expression (ECMAScript) that matches all of a source's name renames it, with
  // $1...
  std::vector<std::pair<std::string, std::string>> renames;
  // Globs of our names that may keep their initial value.
  std::vector<std::string> allow_missing;
  // Globs of the source's names, renamed, that may stay unused.
  std::vector<std::string> allow_unexpected;
  // This holds for embeddings.weight and lm_head.weight.
  RowGrowth new_rows = RowGrowth::kRefuse;
};

}  // namespace halflife::train
