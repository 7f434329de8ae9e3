// The groups in which a rank sums gradients and gathers parameters under ZeRO. All W ranks, in the
// order of the sums, are cut into R = W / S shard groups of S consecutive ranks each. A replica
// group has the ranks of equal index in their shard groups.
//
// The layout has W slices of each bucket. Rank s of shard group r *holds* the R consecutive slices
// [s R, (s + 1) R) of what is divided over a shard group (SliceOf(bucket, s, S)), and *updates*
// slice s R + r. With one shard group, both are the rank's slice.
//
//   gradients:   reduce-scatter in the shard group, then of the held range in the replica group
//   parameters:  all-gather of the updated slices in the replica group, then in the shard group
#pragma once

#include "dist/communicator.h"
#include "dist/parameter_layout.h"

namespace halflife::dist {

struct ShardGroups {
  // One shard group of all ranks. Implicit, because it is the common case.
  ShardGroups(Communicator& world) : shard(&world) {}  // NOLINT(google-explicit-constructor)
  ShardGroups(Communicator& shard_group, Communicator* replica_group)
      : shard(&shard_group), replica(replica_group) {}

  Communicator* shard;              // borrowed
  Communicator* replica = nullptr;  // borrowed; null: there is only one shard group

  int num_shards() const { return shard->size(); }
  int num_replicas() const { return replica == nullptr ? 1 : replica->size(); }
  // Returns the number of the slice that this rank updates.
  int slice() const {
    return shard->rank() * num_replicas() + (replica == nullptr ? 0 : replica->rank());
  }
  ParameterLayout::SliceRange HeldOf(const ParameterLayout& layout, const Bucket& bucket) const {
    return layout.SliceOf(bucket, shard->rank(), num_shards());
  }
  ParameterLayout::SliceRange UpdatedOf(const ParameterLayout& layout, const Bucket& bucket) const {
    return layout.SliceOf(bucket, slice());
  }
};

}  // namespace halflife::dist
