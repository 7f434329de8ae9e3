// What all ranks must have alike, before they share work that would else wait for ranks with less
// of it. A path alone is no such fact: every host may have a copy of its own.
//
//   RequireAlike(context, {WeightsFact(loaded), {"--windows", "5", "5"}});
#pragma once

#include <string>
#include <vector>

#include "dist/rank_context.h"

namespace halflife::cli {

// `value` is compared, and told as `words`: {"--data", "12ab...", "datasets/mine (hash 12ab...)"}.
struct SharedFact {
  std::string name, value, words;
};
// Collective; the same names on every rank. Error kUsage that tells each fact in which a rank
// differs from rank 0.
void RequireAlike(dist::RankContext& context, const std::vector<SharedFact>& facts);

}  // namespace halflife::cli
