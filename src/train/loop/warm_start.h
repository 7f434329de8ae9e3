// Starts a run from the weights of another model (`--init-from`). Nothing is adapted silently:
// every difference is reported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/weight_source.h"
#include "train/config/warm_start_rules.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

struct WarmStartReport {
  int num_loaded = 0, num_kept = 0, num_unused = 0;  // Tensors.
  int64_t num_elements = 0;                          // Elements that were read.
};

// Reads one rule per line, `pattern -> replacement`. '#' starts a comment. Error kUsage with the
// line.
std::vector<std::pair<std::string, std::string>> ReadRenames(const std::filesystem::path& file);

// Fills the arena's main weights, which contain their initial values, from `source`, and updates
// the compute copy. Error kUsage lists every missing, unexpected and misshapen tensor, and names
// that a rule makes equal.
WarmStartReport WarmStart(const ckpt::WeightSource& source, const WarmStartRules& rules,
                          ParameterArena& arena);

}  // namespace halflife::train
