// Facts that must be equal on all ranks before they share work. Otherwise ranks would wait for
// others with less work. A path is not such a fact, because every host may have its own copy.
//
//   RequireAlike(context, {WeightsFact(loaded), {"--windows", "5", "5"}});
#pragma once

#include <string>
#include <vector>

#include "dist/rank_context.h"

namespace halflife::cli {

// `value` is compared, and `words` is printed: {"--data", "12ab...", "datasets/mine (hash
// 12ab...)"}.
struct SharedFact {
  std::string name, value, words;
};
// Collective, with the same names on every rank. Error kUsage with each fact in which a rank
// differs from rank 0.
void RequireAlike(dist::RankContext& context, const std::vector<SharedFact>& facts);

}  // namespace halflife::cli
