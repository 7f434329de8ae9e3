// A world whose ranks are threads of this process. It runs the trainer on many ranks without MPI,
// for tests and for machines that have no MPI. CPU tensors only.
//
//   RunLocalRanks(4, {.timeout_s = 180}, [&](RankContext& context) { Train(context); });
#pragma once

#include <functional>

#include "dist/rank_context.h"

namespace halflife::dist {

// `comm` is this rank's communicator of a LocalWorld; borrowed.
std::unique_ptr<RankContext> MakeLocalRankContext(Communicator& comm);

// Runs `body` on `size` threads and joins them. The first exception that is a cause ends all ranks
// and is rethrown here.
void RunLocalRanks(int size, const RankConfig& config,
                   const std::function<void(RankContext& context)>& body);

}  // namespace halflife::dist
