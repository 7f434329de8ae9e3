// The links of a cluster in a file, for plans (`--plan links=FILE`): measured bandwidths and
// latencies in place of those that a plan assumes for the device.
// docs/running_on_a_cluster.md shows a file.
//
// "node" are the links between the ranks of a node, and "network" those between nodes. "gbs" is
// what one rank sends per second, in 1e9 bytes. "latency_us" is the time of one step of a ring
// without its bytes, and "call_us" that of an operation without any step. Values that are absent
// keep those of the device.
#pragma once

#include <filesystem>

#include "train/plan/cluster.h"

namespace halflife::train {

// Sets the links of `cluster`. Throws Error kUsage with the file, the key and the fix.
void ReadLinks(const std::filesystem::path& file, Cluster& cluster);

}  // namespace halflife::train
