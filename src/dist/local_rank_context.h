// A world whose ranks are threads of this process: the trainer as it runs on many ranks, without
// MPI, for tests and for a machine that has none. CPU tensors only.
//
//   RunLocalRanks(4, {.timeout_s = 180}, [&](RankContext& context) { Train(context); });
#pragma once

#include <functional>

#include "dist/rank_context.h"

namespace halflife::dist {

// `comm`, borrowed, is this rank's of a LocalWorld.
std::unique_ptr<RankContext> MakeLocalRankContext(Communicator& comm);

// Runs body on `size` threads and joins them. The first exception that was a cause ends all ranks
// and is thrown again here.
void RunLocalRanks(int size, const RankConfig& config,
                   const std::function<void(RankContext& context)>& body);

}  // namespace halflife::dist
