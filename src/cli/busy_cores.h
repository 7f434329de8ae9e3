// Warnings about more threads than cores. The threads then wait for each other, and everything
// becomes slower.
//
//   WarnOfBusyCores(context);           // ranks of a world, after at::set_num_threads
//   WarnOfBusyCores(options.threads);   // one process with --threads
#pragma once

#include "dist/rank_context.h"

namespace halflife::cli {

// Collective, after each rank has set its number of threads. Rank 0 warns once, about the first
// host on which the ranks have more threads than cores.
void WarnOfBusyCores(dist::RankContext& context);

// Warns if `threads`, the value of --threads, exceeds the cores that this process may use.
void WarnOfBusyCores(int threads);

}  // namespace halflife::cli
